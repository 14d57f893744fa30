"""Checks of single arguments. Every refusal is one sentence: the argument, what is required, what was given."""

from __future__ import annotations

import numbers
from typing import Any

import jax.numpy as jnp
import numpy as np


def positive_integer(name: str, value: Any) -> None:
    """Refuses what is not an integer >= 1."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or int(value) < 1:
        raise ValueError(f"`{name}` must be an integer >= 1, got {value!r}")


def order(value: Any) -> None:
    """Refuses what is not an order of SnAp."""
    if value is not None and (not isinstance(value, numbers.Integral) or isinstance(value, bool) or int(value) < 1):
        raise ValueError(f"`order` must be an integer >= 1 or None (exact), got {value!r}")


def influence_dtype(value: Any) -> None:
    """Refuses what an influence cannot be stored in."""
    if value is not None and value != "bfloat16" and value is not jnp.bfloat16 and value != jnp.dtype(jnp.bfloat16):
        raise ValueError(f'`influence_dtype` must be None (that of the parameters) or "bfloat16", got {value!r}')


def sparsity(value: Any) -> None:
    """Refuses what is not a share of entries that may be left out."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= float(value) < 1:
        raise ValueError(f"`sparsity` must be a number in [0, 1), got {value!r}")


def mask(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Refuses what is not a boolean mask of that shape with something left in it."""
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {array.shape}")
    if array.dtype != np.bool_:
        raise TypeError(f"`{name}` must be boolean, got {array.dtype}")
    if not array.any():
        raise ValueError(f"`{name}` must keep at least one entry, got none")


def floating(dtype: Any) -> np.dtype[Any]:
    """The dtype of new parameters: JAX's default for None, and nothing but floats."""
    chosen = jnp.dtype(jnp.result_type(float) if dtype is None else dtype)
    if not jnp.issubdtype(chosen, jnp.floating):
        raise TypeError(f"`dtype` must be a floating-point dtype, got {chosen}")
    return chosen
