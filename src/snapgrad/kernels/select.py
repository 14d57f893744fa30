"""Which kernel an algorithm gets, and what to tell a person about it."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from snapgrad import arguments
from snapgrad.kernels import binding
from snapgrad.kernels.base import Kernel
from snapgrad.kernels.native import NativeKernel
from snapgrad.kernels.reference import ReferenceKernel

Backend = Literal["auto", "native", "reference"]

NATIVE, REFERENCE = NativeKernel(), ReferenceKernel()


def check(backend: Any) -> None:
    """Refuses what is not a backend, or one that is not here."""
    if not isinstance(backend, str) or backend not in get_args(Backend):
        raise ValueError(f'`backend` must be "auto", "native" or "reference", got {arguments.shown(backend)}')
    if backend == "native" and not binding.available:
        raise ValueError(
            f'`backend` must be "auto" or "reference" without the native part ({binding.reason}), got "native"'
        )
    if backend == "native" and jax.default_backend() != "cpu":
        raise ValueError(f'`backend` must be "auto" or "reference" on {jax.default_backend()}, got "native" (CPU only)')


def kernel(backend: Backend, dtype: Any) -> Kernel:
    """The kernel for parameters of a dtype: "auto" takes the native one wherever it can run."""
    check(backend)
    computes = jnp.dtype(dtype) in binding.DTYPES
    if backend == "native" and not computes:
        raise ValueError(f'`params` must be float32 or float64 with backend="native", got {jnp.dtype(dtype)}')
    if backend == "native":
        return NATIVE
    if backend == "reference" or jax.default_backend() != "cpu" or not computes:
        return REFERENCE
    if not binding.available:
        _say_that_native_is_missing()
        return REFERENCE
    return NATIVE


def backend_info() -> dict[str, Any]:
    """What runs here: the backend that "auto" takes, JAX's device, and how the native part was found.

    >>> backend_info()  # doctest: +SKIP
    {'backend': 'native', 'device': 'cpu', 'native': True, 'instructions': 'avx2', 'reason': ''}
    """
    on_cpu = jax.default_backend() == "cpu"
    reason = "" if on_cpu else f"JAX runs on {jax.default_backend()}; the native part is for CPU"
    return {
        "backend": "native" if binding.available and on_cpu else "reference",
        "device": jax.default_backend(),
        "native": binding.available,
        "instructions": binding.instructions,
        "reason": reason if binding.available else binding.reason,
    }


@lru_cache(maxsize=1)
def _say_that_native_is_missing() -> None:
    warnings.warn(
        "snapgrad runs without its native part, in plain JAX: correct, but many times slower on CPU "
        f"({binding.reason})",
        RuntimeWarning,
        stacklevel=5,  # the caller of `init`
    )
