"""Who the machine is: what results are recorded with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

from snapgrad.kernels.select import backend_info


def describe() -> dict[str, Any]:
    """The machine, the versions and the backend that a measurement or a run belongs to."""
    return {
        "processor": _processor(),
        "cores": len(cores()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("snapgrad", "jax", "jaxlib", "optax", "numpy")},
        **backend_info(),
    }


def cores() -> list[int]:
    """The cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def memory_bytes() -> int:
    """Physical memory, or what the process's control group may use of it; 8 GiB where it cannot be found out."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        physical = 8 << 30
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:
            return min(physical, int(limit.read()))
    except (ValueError, OSError):  # no control group, or one without a limit ("max")
        return physical
