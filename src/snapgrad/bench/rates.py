"""What the machine can do: the two sides of its roofline."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from snapgrad.bench.timing import Repeated

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
