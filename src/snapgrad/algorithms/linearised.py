"""A window with its derivatives, in one pass over time: what algorithms that carry an influence or a credit start from.

Inside, a batch stands innermost, [..., B], as the kernels take it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from snapgrad.cells.base import Cell, Jacobians, Local, PyTree
from snapgrad.kernels.base import Kernel


class Linearised(NamedTuple):
    """What a batch goes through in a window of T steps."""

    last: PyTree  # [B, ...] s_T
    outputs: jax.Array  # [T, B, ...] h_1 .. h_T
    after: PyTree  # [T, ..., B] s_1 .. s_T
    local: Local  # [T, ...] what D_t and I_t are made of


def linearise(
    kernel: Kernel, cell: Cell, jacobians: Jacobians, params: PyTree, s_0: PyTree, xs: jax.Array
) -> Linearised:
    """Runs a batch over a window, from s_0 [B, ...] with inputs xs [T, B, ...]."""
    forward = jacobians.forward_at(kernel, params)

    def step(s_tm1: PyTree, x_t: jax.Array) -> tuple[PyTree, tuple[PyTree, Local]]:
        s_t, local = jax.lax.optimization_barrier(forward(s_tm1, x_t))
        return s_t, (s_t, local)

    # The barriers: what is read in two layouts would be computed for each of them, with strides in between.
    s_0 = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), s_0))
    s_T, (after, local) = jax.lax.scan(step, s_0, jnp.moveaxis(xs, 1, -1))
    outputs = jax.vmap(jax.vmap(cell.output, in_axes=-1))(after)
    return Linearised(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), s_T), outputs, after, local)


def lane_deltas(cell: Cell, window: Linearised, deltas: jax.Array) -> jax.Array:
    """dL/ds [T, states, B], flat, from dL/dh [T, B, ...]: back through the cell's `output`."""

    def one(s_t: PyTree, delta_t: jax.Array) -> jax.Array:
        return ravel_pytree(jax.vjp(cell.output, s_t)[1](delta_t)[0])[0]

    return jax.vmap(jax.vmap(one, in_axes=(-1, 0), out_axes=-1))(window.after, deltas)
