"""The Sparse n-Step Approximation to RTRL (Menick et al. 2020).

    J_t = I_t + D_t J_tm1            J = ds/dtheta,  I_t = ds_t/dtheta_t,  D_t = ds_t/ds_tm1
    g_t = dL_t/ds_t . J_t

SnAp-n keeps entry (i, j) of J only if parameter j influences state entry i within n steps. The kept entries form one
dense block for every group of parameters (sparsity/reach.py), and the recursion closes on the block:

    J[R, P] <- I[R, P] + D[R, R] J[R, P]            R: what the group reaches,  P: its parameters

n = 1 keeps the entries of I itself; n without limit (`order=None`) is exact RTRL. When weights change between windows,
state and influence are carried on unchanged ("stale") until `reset`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from snapgrad import arguments
from snapgrad.algorithms.base import (
    Outcome,
    Rule,
    build,
    param_dtype,
    select_lanes,
    state_deltas,
    unroll,
)
from snapgrad.algorithms.episodic import backward_in_time
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels import reference as kernel
from snapgrad.sparsity.reach import Blocks, influence_blocks

# (blocks, J_tm1, D_t [B, nnz(D)], I_t [B, nnz(I)]) -> J_t
Update = Callable[[Blocks, kernel.Influence, jax.Array, jax.Array], kernel.Influence]


def snap(cell: Cell, loss: Loss, *, order: int | None, episodic: bool = False) -> Algorithm:
    """SnAp-n: forward in time, in constant memory, with an update at every step if wanted.

    Args:
        cell: the recurrent cell.
        loss: (readout, h, target) -> scalar for one example at one step.
        order: n >= 1, how many steps an influence may take to reach a state entry; None for exact RTRL.
        episodic: declares that every window is one whole sequence: it starts from reset and ends the sequence. The
            gradient is the same, computed the far cheaper way of `algorithms/episodic.py`.
    """
    arguments.order(order)
    name = f"snap(order={order}{', episodic' if episodic else ''})"
    rule = backward_in_time(cell, order) if episodic else forward_in_time(cell, order, influence_update)
    return build(name, cell, loss, rule)


def influence_update(blocks: Blocks, J_tm1: kernel.Influence, D_t: jax.Array, I_t: jax.Array) -> kernel.Influence:
    """J_t = I_t + D_t J_tm1 on the kept entries."""
    return kernel.add_immediate(blocks, kernel.propagate(blocks, D_t, J_tm1), I_t)


def forward_in_time(cell: Cell, order: int | None, update: Update) -> Rule:
    """Carries the influence J with the state: shared by every algorithm that differs in `order` and `update` only."""

    def start(params: PyTree, batch_size: int, key: Any) -> kernel.Influence:
        return kernel.zeros(_blocks(cell, params, order), batch_size, param_dtype(params))

    def window(params: PyTree, s_0: PyTree, J_0: kernel.Influence, xs: Any) -> tuple[jax.Array, Any]:
        way = unroll(cell, params, s_0, xs)

        def backward(deltas: jax.Array) -> Outcome:
            blocks = _blocks(cell, params, order)
            linearise = jax.vmap(cell.jacobians(params).at(params, blocks.dynamics))

            def step(carry: tuple[kernel.Influence, jax.Array], at_t: Any) -> Any:
                J_tm1, g = carry
                s_tm1, x_t, delta_t = at_t
                D_t, I_t = linearise(s_tm1, x_t)
                J_t = update(blocks, J_tm1, D_t, I_t)
                return (J_t, g + kernel.contract(blocks, delta_t, J_t)), None

            g, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, params))
            at = way.before, xs, state_deltas(cell, way, deltas)
            (J_T, g), _ = jax.lax.scan(step, (J_0, g), at)
            return Outcome(unravel(g), way.last, J_T)

        return way.outputs, backward

    def restart(J: kernel.Influence, where: jax.Array) -> kernel.Influence:
        return jax.tree.map(lambda block: select_lanes(where, jnp.zeros((), block.dtype), block), J)

    return Rule(start, window, restart)


def _blocks(cell: Cell, params: PyTree, order: int | None) -> Blocks:
    jacobians = cell.jacobians(params)
    return influence_blocks(jacobians.groups, jacobians.dynamics, order)
