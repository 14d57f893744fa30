"""SnAp by magnitude, the alternative that Menick et al. 2020 name beside fixed patterns: the full product, then top-k.

    J_t = top_k(I_t + D_t J_tm1)            g_t = dL_t/ds_t . J_t

top_k keeps, in every column of J (the influence of one parameter) and for every example, the k entries of the largest
magnitude, and sets the others to zero. Which they are depends on values and changes from step to step. In the paper's
words this "would reduce the bias of the approximation but increase its cost", to that of exact RTRL and the selection.
With k = states it is exact RTRL.

J is one dense array here, and the selection runs in plain JAX whatever the backend: this is for the study of what could
be kept, not for speed. `backend` decides on the products with the weights.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from snapgrad import arguments
from snapgrad.algorithms.base import (
    Outcome,
    Rule,
    build,
    param_dtype,
    select_lanes,
)
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.algorithms.linearised import lane_deltas, linearise
from snapgrad.algorithms.placement import LANES_AND_BLOCKS
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels.base import Kernel
from snapgrad.kernels.resharding import Resharding, Split
from snapgrad.kernels.select import Backend
from snapgrad.kernels.share import varying
from snapgrad.sparsity.moves import parameter_sources


def snap_topk(cell: Cell, loss: Loss, *, k: int, backend: Backend = "auto") -> Algorithm:
    """Exact propagation of the influence, of which the `k` largest entries of every column are kept.

    Args:
        cell: the recurrent cell.
        loss: (readout, h, target) -> scalar for one example at one step.
        k: entries of every column of J that are kept, at most the number of state entries.
        backend: "native" (C++, CPU), "reference" (plain JAX, any device), or "auto": native wherever it can run.
    """
    arguments.positive_integer("k", k)

    def width(kernel: Kernel, params: PyTree) -> int:
        """Columns of J that each device has, one after the other; the last may be padding."""
        return -(-sum(leaf.size for leaf in jax.tree.leaves(params)) // kernel.share.params)

    def start(kernel: Kernel, params: PyTree, batch_size: int, key: Any) -> jax.Array:
        n_states = ravel_pytree(cell.initial_state())[0].size
        return jnp.zeros((batch_size, width(kernel, params), n_states), param_dtype(params))  # J, transposed

    def window(kernel: Kernel, params: PyTree, s_0: PyTree, J_0: jax.Array, xs: Any) -> tuple[jax.Array, Any]:
        jacobians = cell.jacobians(params)
        trajectory = linearise(kernel, cell, jacobians, params, s_0, xs)

        def backward(deltas: jax.Array) -> Outcome:
            groups, dynamics = jacobians.groups, jacobians.dynamics
            immediate_at = jacobians.immediate_at(kernel, params)
            dynamics_at = jacobians.dynamics_at(kernel, params, dynamics)
            # One before the first column is one past the end too: an index below zero would count from there.
            first, columns = kernel.share.part * J_0.shape[1], J_0.shape[1]
            column = jnp.asarray(groups.entry_param) - first
            column, row = jnp.where(column < 0, columns, column), groups.entries.cols[groups.entry_credit]
            zero = jnp.zeros((xs.shape[1], *dynamics.shape), J_0.dtype)

            def step(carry: tuple[jax.Array, jax.Array], at_t: Any) -> Any:
                J_tm1, g = carry
                local_t, delta_t = at_t
                D_t, I_t = dynamics_at(local_t), immediate_at(local_t)
                values = kernel.sums(I_t.at, I_t.left, I_t.right)
                D_t = zero.at[:, dynamics.rows, dynamics.cols].set(D_t[: dynamics.nnz].T, unique_indices=True)
                J_t = jnp.einsum("bqr,bpr->bpq", D_t, J_tm1).at[:, column, row].add(values.T, mode="drop")
                J_t = _largest(J_t, k)
                return (J_t, g + jnp.einsum("sb,bps->p", delta_t, J_t)), None

            flat, unravel = ravel_pytree(params)
            at = trajectory.local, lane_deltas(cell, trajectory, deltas)
            start = varying(J_0, at), varying(jnp.zeros(columns, flat.dtype), J_0, at)
            (J_T, g), _ = jax.lax.scan(step, start, at)
            if kernel.share.params > 1:
                everywhere = varying(jnp.zeros(kernel.share.params * columns, g.dtype), g)
                g = jax.lax.dynamic_update_slice(everywhere, g, (first,))[: flat.size]
            return Outcome(unravel(g), trajectory.last, J_T, trajectory)

        return trajectory.outputs, backward

    def restart(kernel: Kernel, J: jax.Array, where: jax.Array) -> jax.Array:
        return select_lanes(where, jnp.zeros((), J.dtype), J)

    def transfer(kernel: Kernel, J: jax.Array, old: PyTree, new: PyTree) -> jax.Array:
        with_zero = jnp.pad(J, ((0, 0), (0, 1), (0, 0)))  # the column of a parameter that is new
        return with_zero[:, parameter_sources(old, new)]

    def owners(kernel: Kernel, params: PyTree) -> NDArray[np.int64] | None:
        n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
        return None if kernel.share.params == 1 else np.arange(n_params) // width(kernel, params)

    def resharding(kernel: Kernel, params: PyTree, batch_size: int) -> Resharding:
        columns = np.arange(sum(leaf.size for leaf in jax.tree.leaves(params)))
        split = Split(columns // width(kernel, params), np.ones_like(columns), kernel.share.params)
        return Resharding(batch_size, kernel.share, split)

    axes = lambda kernel: LANES_AND_BLOCKS  # noqa: E731
    rule = Rule(start, window, restart, transfer, axes=axes, owners=owners, resharding=resharding)
    algorithm = build(f"snap_topk(k={k})", cell, loss, rule, backend)
    n_states = ravel_pytree(cell.initial_state())[0].size
    if k > n_states:
        raise ValueError(f"`k` must be at most the {n_states} state entries of {cell}, got {k}")
    return algorithm


def _largest(J: jax.Array, k: int) -> jax.Array:
    """J with zeros in place of all but the k largest magnitudes along its last axis; of two alike, the first."""
    if k == J.shape[-1]:
        return J
    _, places = jax.lax.top_k(jnp.abs(J), k)
    kept = jnp.take_along_axis(J, places, axis=-1)
    return jnp.put_along_axis(jnp.zeros_like(J), places, kept, axis=-1, inplace=False)
