"""Checks of single arguments. Every refusal is one sentence: the argument, what is required, what was given."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Steps of one window, at most: positions in a sequence or a text are counted in int32, with room for a window on top.
MOST_STEPS = 1 << 29


def positive_integer(name: str, value: Any, most: int | None = None) -> None:
    """Refuses what is not an integer >= 1, and not above `most`."""
    if not _is_integer(value) or int(value) < 1:
        raise ValueError(f"`{name}` must be an integer >= 1, got {shown(value)}")
    if most is not None and int(value) > most:
        raise ValueError(f"`{name}` must be an integer <= {most}, got {shown(value)}")


def positive_number(name: str, value: Any) -> None:
    """Refuses what is not a finite number > 0."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < math.inf:
        raise ValueError(f"`{name}` must be a number > 0, got {shown(value)}")


def seed(value: Any) -> None:
    """Refuses what is not a seed of 32 bits."""
    if not _is_integer(value) or not 0 <= int(value) < 2**32:
        raise ValueError(f"`seed` must be an integer in [0, 2^32), got {shown(value)}")


def order(value: Any) -> None:
    """Refuses what is not an order of SnAp."""
    if value is not None and (not _is_integer(value) or int(value) < 1):
        raise ValueError(f"`order` must be an integer >= 1 or None (exact), got {shown(value)}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def boolean(name: str, value: Any) -> None:
    """Refuses what is not True or False: "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False, got {shown(value)}")


def influence_dtype(value: Any) -> None:
    """Refuses what an influence cannot be stored in."""
    is_dtype = isinstance(value, np.dtype) and value == jnp.dtype(jnp.bfloat16)
    is_name = isinstance(value, str) and value == "bfloat16"
    if value is not None and value is not jnp.bfloat16 and not is_dtype and not is_name:
        raise ValueError(f'`influence_dtype` must be None (that of the parameters) or "bfloat16", got {shown(value)}')


def sparsity(value: Any) -> None:
    """Refuses what is not a share of entries that may be left out."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= float(value) < 1:
        raise ValueError(f"`sparsity` must be a number in [0, 1), got {shown(value)}")


def key(name: str, value: Any) -> None:
    """Refuses what is not one PRNG key, typed or raw."""
    is_array = isinstance(value, jax.Array | np.ndarray)
    typed = is_array and jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.ndim == 0
    raw = is_array and value.dtype == jnp.uint32 and value.ndim == 1
    if not typed and not raw:
        got = f"{value.dtype} of shape {value.shape}" if is_array else shown(value)
        raise TypeError(f"`{name}` must be one PRNG key, such as jax.random.key(0), got {got}")


def array(name: str, value: Any) -> jax.Array:
    """`value` as a JAX array; refuses what is none, and integers that JAX would wrap round."""
    if isinstance(value, jax.Array):
        return value
    if hasattr(value, "__jax_array__"):  # as Flax's parameters have
        return jnp.asarray(value)
    try:
        if isinstance(value, list | tuple) and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
            return jnp.asarray(value)
        host = np.asarray(value)
        if host.dtype.kind in "iu" and host.size:
            bounds = np.iinfo(jax.dtypes.canonicalize_dtype(host.dtype))
            for extreme in (int(host.min()), int(host.max())):
                if not bounds.min <= extreme <= bounds.max:
                    raise OverflowError(f"{extreme}, which does not fit into {bounds.dtype}")
        if host.dtype.kind == "O" and isinstance(value, int | list | tuple):
            raise OverflowError("integers of more than 64 bits")
        return jnp.asarray(host)
    except OverflowError as error:
        raise ValueError(f"`{name}` must hold integers that JAX can represent, got {error}") from None
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be an array of numbers, got {type(value).__name__} {shown(value)}") from None
    except RuntimeError as error:  # PyTorch's, which says to detach a tensor
        why = str(error).splitlines()[0]
        raise TypeError(f"`{name}` must be an array of numbers, got a {type(value).__name__}: {why}") from None


def mask(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Refuses what is not a boolean mask of that shape with something left in it."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a boolean matrix, got {type(value).__name__} {shown(value)}") from None
    if array.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {array.shape}")
    if array.dtype != np.bool_:
        raise TypeError(f"`{name}` must be boolean, got {array.dtype}")
    if not array.any():
        raise ValueError(f"`{name}` must keep at least one entry, got none")


def floating(dtype: Any) -> np.dtype[Any]:
    """The dtype of new parameters: JAX's default for None, and nothing but floats that can be computed with."""
    try:
        chosen = jnp.dtype(jnp.result_type(float) if dtype is None else dtype)
    except TypeError:
        raise TypeError(f"`dtype` must be a floating-point dtype, got {shown(dtype)}") from None
    if not is_float(chosen):
        raise TypeError(f"`dtype` must be a floating-point dtype, got {chosen}")
    return chosen


def is_float(dtype: Any) -> bool:
    """Whether one can compute in it: the floats of 8 bits and fewer are for storage only."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.dtype(dtype).itemsize >= 2


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known one, if one is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shown(value: Any) -> str:
    """A value in a message: one line, and not a long one."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
