"""What an approximation leaves out: the true influence against what SnAp of each order keeps of it.

    J_T = ds_T/dtheta        after a whole sequence with the weights held fixed, by reverse-mode autodiff of the steps

This is the paper's "Analysis of the bias introduced by SnAp" (Menick et al. 2020): which entries of J are kept, how
much of its magnitude they hold, and, beyond the paper, how far the gradient turns away from the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from snapgrad import arguments, memory
from snapgrad.algorithms import checks
from snapgrad.algorithms.bptt import bptt
from snapgrad.algorithms.interface import Loss, Params
from snapgrad.algorithms.snap import snap
from snapgrad.cells.base import Cell, PyTree
from snapgrad.sparsity.reach import influence_blocks

ORDERS = (1, 2, 3)


class Influence(NamedTuple):
    """The true influence, and who keeps what of it; both [states, params], numbered as `ravel_pytree` does."""

    J: NDArray[Any]
    first_order: NDArray[np.int64]  # the lowest order of SnAp that keeps the entry; 0 where nothing ever reaches it


class Kept(NamedTuple):
    """What SnAp of one order keeps of the influence, and what its gradient is worth."""

    order: int
    entries: float  # share of the entries that any influence ever reaches
    magnitude: float  # sum of the kept magnitudes over the sum of all
    kept_mean: float  # mean magnitude of the kept entries
    dropped_mean: float  # mean magnitude of the entries that are reached but dropped; nan where there are none
    cosine: float  # of the cell's gradient with the exact one


def true_influence(cell: Cell, params: PyTree, xs: Any) -> Influence:
    """J = ds/dparams after one sequence `xs` [T, ...] from the initial state, and the order that keeps each entry.

    `params` are the cell's own. J is dense: states x params numbers, at the cost of a backward pass a state entry.
    """
    checks.cell(cell)
    _check_cell_params(params)
    cell.check(params)
    _check_memory(cell, params)
    xs = checks.as_window(xs, ())[0]
    integer = jnp.issubdtype(xs.dtype, jnp.integer)
    if len(xs.shape) < 1 or xs.shape[1:] != (() if integer else (cell.inputs,)) or xs.dtype == jnp.bool_:
        got = f"{xs.dtype} of shape {xs.shape}"
        raise ValueError(f"`xs` must be one sequence, [T] of integers or [T, {cell.inputs}] of floats, got {got}")
    dtype = jnp.result_type(*jax.tree.leaves(params))
    if not integer and xs.dtype != dtype:
        raise TypeError(f"`xs` must have the dtype of `params`, {dtype}, got {xs.dtype}")
    return Influence(np.asarray(_influence(cell, params, xs)), first_orders(cell, params))


def first_orders(cell: Cell, params: PyTree) -> NDArray[np.int64]:
    """The lowest order of SnAp that keeps each entry of J [states, params]; 0 where nothing ever reaches it.

    It comes from structure: the patterns in `params`, never their values.
    """
    jacobians = cell.jacobians(params)
    everything = influence_blocks(jacobians.groups, jacobians.dynamics, None)
    first, order = np.zeros(everything.reach.shape, np.int64), 0  # [groups, states]
    while np.count_nonzero(first) < everything.reach.nnz:
        order += 1
        reached = influence_blocks(jacobians.groups, jacobians.dynamics, order).reach.mask()
        first[reached & (first == 0)] = order
    return first[everything.groups.of_param].T


def analyse(
    cell: Cell, loss: Loss, params: Params, xs: Any, targets: Any, *, orders: Sequence[int] = ORDERS
) -> list[Kept]:
    """What each order keeps on whole sequences `xs`, `targets` [T, B, ...] that start from reset; one row an order.

    Magnitudes are means over the B sequences of |J| after the last step; the gradient is that of all of them.
    """
    if not isinstance(orders, Sequence) or isinstance(orders, str | bytes):
        raise TypeError(f"`orders` must be a sequence of integers >= 1, got {arguments.shown(orders)}")
    for order in orders:
        arguments.positive_integer("orders", order)
    checks.params(cell, params)
    _check_memory(cell, params.cell)
    xs, targets = checks.as_window(xs, targets)
    if len(xs.shape) < 2:
        raise ValueError(f"`xs` must be whole sequences, [T, B] of integers or [T, B, {cell.inputs}], got {xs.shape}")
    exact = _gradient(bptt(cell, loss), params, xs, targets)  # checks the window
    magnitude = np.asarray(_mean_magnitude(cell, params.cell, xs))
    first = first_orders(cell, params.cell)
    reached = first > 0
    rows = []
    for order in orders:
        kept = reached & (first <= order)
        dropped = magnitude[reached & ~kept]
        gradient = _gradient(snap(cell, loss, order=order, episodic=True), params, xs, targets)
        rows.append(
            Kept(
                order,
                float(kept.sum() / reached.sum()),
                float(magnitude[kept].sum() / magnitude.sum()),
                float(magnitude[kept].mean()),
                float(dropped.mean()) if dropped.size else float("nan"),
                float(gradient @ exact / (np.linalg.norm(gradient) * np.linalg.norm(exact))),
            )
        )
    return rows


@jax.jit(static_argnums=0)
def _influence(cell: Cell, params: PyTree, xs: jax.Array) -> jax.Array:
    flat_params, unravel = ravel_pytree(params)
    s_0 = jax.tree.map(lambda leaf: leaf.astype(flat_params.dtype), cell.initial_state())

    def last_state(flat_params: jax.Array) -> jax.Array:
        own = unravel(flat_params)
        s_T, _ = jax.lax.scan(lambda s, x: (cell.step(own, s, x), None), s_0, xs)
        return ravel_pytree(s_T)[0]

    return jax.jacrev(last_state)(flat_params)


@jax.jit(static_argnums=0)
def _mean_magnitude(cell: Cell, params: PyTree, xs: jax.Array) -> jax.Array:
    """The mean of |J| over the sequences, one after the other: a batch of them would not fit."""
    n_states, flat_params = ravel_pytree(cell.initial_state())[0].size, ravel_pytree(params)[0]

    def add(total: jax.Array, one_xs: jax.Array) -> tuple[jax.Array, None]:
        return total + jnp.abs(_influence(cell, params, one_xs)), None

    zero = jnp.zeros((n_states, flat_params.size), flat_params.dtype)
    return jax.lax.scan(add, zero, jnp.swapaxes(xs, 0, 1))[0] / xs.shape[1]


def _gradient(algorithm: Any, params: Params, xs: jax.Array, targets: Any) -> NDArray[Any]:
    state = algorithm.init(params, batch_size=xs.shape[1])
    return np.asarray(ravel_pytree(algorithm.grad(params, state, xs, targets)[0].grads.cell)[0])


def _check_memory(cell: Cell, params: PyTree) -> None:
    n_states, n_params = (ravel_pytree(tree)[0].size for tree in (cell.initial_state(), params))
    parts = {"influence": 3.0 * n_states * n_params * jnp.result_type(*jax.tree.leaves(params)).itemsize}
    memory.check("params", f"the whole influence on {cell}", parts, "a smaller network")


def _check_cell_params(params: PyTree) -> None:
    if isinstance(params, Params):
        raise TypeError("`params` must be the parameters of the cell alone (`params.cell`), got sg.Params")
