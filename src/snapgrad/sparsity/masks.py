"""Random weight patterns and the initial values that suit them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.pattern import Pattern


def random_pattern(key: jax.Array, shape: tuple[int, int], sparsity: float, *, gates: int = 1) -> Pattern:
    """A uniformly random pattern for `gates` matrices of `shape`, stacked by rows.

    Each matrix keeps exactly round((1 - sparsity) * size) entries, and at least one.
    """
    arguments.sparsity(sparsity)
    stacked = (gates * shape[0], shape[1])
    if sparsity == 0:
        return Pattern.full(stacked)
    if isinstance(key, jax.core.Tracer):
        raise TypeError(
            "a sparse `init` must be called outside jit and vmap, or be given masks: a pattern is structure, not data"
        )
    size = shape[0] * shape[1]
    count = max(1, round((1 - sparsity) * size))
    # NumPy draws without replacement in time proportional to `count`; JAX would sort all of `size`.
    draw = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    flat = np.concatenate(
        [gate * size + draw.choice(size, count, replace=False, shuffle=False) for gate in range(gates)]
    )
    return Pattern(flat // shape[1], flat % shape[1], stacked)


def random_matrix(key: jax.Array, pattern: Pattern, dtype: Any) -> SparseMatrix:
    """Truncated normal values with variance 1 / (entries in the same row).

    Scaling by each row's own fan-in keeps the pre-activations' variance what it is in a dense layer,
    whatever the sparsity and however uneven the pattern.
    """
    fan_in = np.maximum(np.diff(pattern.row_starts), 1)
    # A standard normal cut at two deviations has standard deviation 0.8796.
    unit = jax.random.truncated_normal(key, -2.0, 2.0, (pattern.nnz,), dtype) / 0.87962566103423978
    scale = np.repeat(1 / np.sqrt(fan_in), np.diff(pattern.row_starts))
    return SparseMatrix(unit * jnp.asarray(scale, dtype), pattern)
