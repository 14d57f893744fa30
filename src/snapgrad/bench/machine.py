"""What the machine can do: the two sides of its roofline, and who it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from snapgrad.bench.timing import Repeated
from snapgrad.kernels.select import backend_info

GEMM_SIZE = 1536
STREAM_FLOATS = 64 << 20  # 256 MiB: beyond any cache


class Rates(NamedTuple):
    """Measured limits."""

    flops: float  # floating-point operations a second, of a matrix product
    bytes: float  # bytes a second, read and written, of a pass over a long array

    def seconds(self, flops: float, bytes: float) -> float:
        """The roofline: the least time for that much arithmetic and that much memory traffic."""
        return max(flops / self.flops, bytes / self.bytes)


def programs() -> dict[str, Callable[[int], None]]:
    """A matrix product and a pass in place over a long array, both by XLA in float32 on all cores."""
    x = jax.random.normal(jax.random.key(0), (GEMM_SIZE, GEMM_SIZE)) / GEMM_SIZE**0.5
    return {
        "gemm": Repeated(lambda a: x @ a, x),
        "stream": Repeated(lambda a: 0.999 * a, jnp.ones(STREAM_FLOATS)),
    }


def rates(seconds: dict[str, float]) -> Rates:
    """Rates from the times of `programs`."""
    return Rates(2 * GEMM_SIZE**3 / seconds["gemm"], 8 * STREAM_FLOATS / seconds["stream"])


def describe() -> dict[str, Any]:
    """The machine and the versions that a measurement belongs to."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "snapgrad": version("snapgrad"),
        **backend_info(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def memory_bytes() -> int:
    """Physical memory, or 8 GiB where it cannot be found out."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30
