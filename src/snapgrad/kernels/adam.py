"""One update of Adam from a clipped gradient in C++ (native/adam.h): one pass over weights and moments, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from snapgrad.kernels import binding


class Adam(NamedTuple):
    """Optax's `adam` behind its `clip_by_global_norm`."""

    rate: float
    clip: float
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8


class Moments(NamedTuple):
    """What Adam remembers: updates made so far, and means of the gradient [n] and of its square [n]."""

    updates: jax.Array
    first: jax.Array
    second: jax.Array


def update(
    adam: Adam, params: Sequence[jax.Array], moments: Moments, gradient: Sequence[jax.Array], asked: Any, seen: Any
) -> tuple[list[jax.Array], Moments, jax.Array, Any]:
    """The weights and the moments after an update, and whether the gradient's square is finite in float32.

    Where it is not, or nothing is `asked`, they stay as they are. Weights and gradient are n numbers in pieces, which
    need not be cut alike. `seen`, an array, comes back as it is: what was computed from the weights before.
    """
    binding.register()
    named = [moments.first, moments.second, moments.updates, seen]
    results = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in (*named, asked, *params)]
    pieces = {len(named) + 1 + place: len(named) + 1 + place for place in range(len(params))}
    call = jax.ffi.ffi_call(
        "snapgrad_adam_update",
        results,  # the place of `asked` has whether all was finite
        input_output_aliases={place: place for place in range(len(named))} | pieces,
    )
    attributes = {name: np.float64(value) for name, value in adam._asdict().items()}
    out = call(*named, asked, *params, *gradient, **attributes, pieces=np.int64(len(params)))
    first, second, updates, seen, whole, *after = out
    return after, Moments(updates, first, second), whole, seen
