"""Gradients of weights that do not exist.

A weight of zero leaves D as it is. So the influence of an absent weight c follows from the network as it stands,

    J_c <- D J_c + I_c            g_c = dL/ds . J_c

on the state entries that its unit reaches within n steps. The new connection would lead to that unit, which reaches the
same with it and without, so g_c is exactly the gradient that SnAp-n would give to the weight if it were there, alone,
with value zero. A probe is such a column of J, for each of a sample of absent weights, with the sum of its gradients.
Probes follow a network whatever algorithm it learns by; they work for unit-wise cells and stacks of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from snapgrad.algorithms.base import param_dtype
from snapgrad.algorithms.linearised import Linearised, lane_deltas
from snapgrad.cells.base import Jacobians, PyTree
from snapgrad.cells.stack import Stack
from snapgrad.cells.unit import UnitCell
from snapgrad.kernels.base import Influence, Kernel, Structure
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks, influence_blocks

ProbedCell = UnitCell | Stack


class Absent(NamedTuple):
    """Patterns of absent weights, or sums of gradients there; named as `UnitParams` names what exists.

    Of a stack there is a tuple of these, one a layer.
    """

    recurrent: Any
    input: Any


class Probes(NamedTuple):
    """What is carried along."""

    gradients: PyTree  # `Absent`, summed since the probes were set
    influence: Influence


def start(kernel: Kernel, cell: ProbedCell, params: PyTree, order: int, absent: PyTree, batch_size: int) -> Probes:
    """Probes at the patterns `absent` of absent weights, with no past."""
    dtype = param_dtype(params)
    gradients = _zeros(absent, dtype)
    blocks = _blocks(cell, params, gradients, order)
    J = kernel.zeros(blocks, batch_size, dtype)
    return Probes(gradients, kernel.carry_over(blocks, blocks, np.arange(blocks.n_params), J))  # with room for others


def replace(
    kernel: Kernel,
    cell: ProbedCell,
    old: PyTree,
    new: PyTree,
    order: int,
    probes: Probes,
    absent: PyTree,
) -> Probes:
    """Other probes in the place of those that followed `old`, on parameters of other patterns; with no past."""
    gradients = _zeros(absent, param_dtype(new))
    before, after = _blocks(cell, old, probes.gradients, order), _blocks(cell, new, gradients, order)
    all_new = np.full(after.n_params, before.n_params)
    return Probes(gradients, kernel.carry_over(before, after, all_new, probes.influence))


def restart(kernel: Kernel, probes: Probes, where: jax.Array) -> Probes:
    """Probes that see a new sequence in the lanes where `where` [B] is True."""
    return probes._replace(influence=kernel.forget(probes.influence, where))


def follow(
    kernel: Kernel,
    cell: ProbedCell,
    params: PyTree,
    order: int,
    probes: Probes,
    trajectory: Linearised,
    deltas: jax.Array,
) -> Probes:
    """Takes the probes through a window of the network, with dL/dh `deltas` [T, B, ...].

    What D and I are made of does not depend on which weights are looked at, so the network's own `trajectory` serves.
    """
    jacobians, blocks = _jacobians(cell, params, probes.gradients), _blocks(cell, params, probes.gradients, order)
    dynamics_at = jacobians.dynamics_at(kernel, params, blocks.dynamics)
    immediate_at = jacobians.immediate_at(kernel, params)

    def step(carry: tuple[Influence, jax.Array], at_t: Any) -> tuple[Any, None]:
        J_tm1, g = carry
        local_t, delta_t = at_t
        J_t, g_t = kernel.influence_step(blocks, J_tm1, dynamics_at(local_t), immediate_at(local_t), delta_t)
        return (J_t, g + g_t), None

    g, unravel = ravel_pytree(probes.gradients)
    at = trajectory.local, lane_deltas(cell, trajectory, deltas)
    (J_T, g), _ = jax.lax.scan(step, (probes.influence, g), at)
    return Probes(unravel(g), J_T)


def structures(cell: ProbedCell, params: PyTree, order: int, probes: Probes) -> tuple[Structure, ...] | None:
    """What `follow` asks the kernel to work by; None if its program depends on the patterns in other ways too."""
    blocks = _blocks(cell, params, probes.gradients, order)
    sums = _jacobians(cell, params, probes.gradients).sums(blocks.dynamics, by_column=False)
    return None if sums is None else (blocks, *sums)


def _zeros(absent: PyTree, dtype: Any) -> PyTree:
    def at(pattern: Pattern) -> SparseMatrix:
        return SparseMatrix(jnp.zeros(pattern.nnz, dtype), pattern)

    return jax.tree.map(at, absent)


def _jacobians(cell: ProbedCell, params: PyTree, gradients: PyTree) -> Jacobians:
    absent = jax.tree.map(lambda m: m.pattern, gradients, is_leaf=lambda node: isinstance(node, SparseMatrix))
    return cell.jacobians(params, absent)


def _blocks(cell: ProbedCell, params: PyTree, gradients: PyTree, order: int) -> Blocks:
    jacobians = _jacobians(cell, params, gradients)
    return influence_blocks(jacobians.groups, jacobians.dynamics, order)
