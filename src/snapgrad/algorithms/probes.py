"""Gradients of weights that do not exist.

A weight of zero leaves D as it is. So the influence of an absent weight c follows from the network as it stands,

    J_c <- D J_c + I_c            g_c = dL/ds . J_c

on the state entries that its unit reaches within n steps. The new connection would lead to that unit, which reaches the
same with it and without, so g_c is exactly the gradient that SnAp-n would give to the weight if it were there, alone,
with value zero. A probe is such a column of J, for each of a sample of absent weights, with the sum of its gradients.
Probes follow a network whatever algorithm it learns by; they work for unit-wise cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from snapgrad.algorithms.base import param_dtype
from snapgrad.algorithms.linearised import lane_deltas, linearise
from snapgrad.cells.unit import UnitCell, UnitParams
from snapgrad.cells.unit_jacobians import UnitJacobians
from snapgrad.kernels.base import Influence, Kernel, Structure
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks, influence_blocks


class Absent(NamedTuple):
    """Sums of gradients at the patterns of absent weights; named as `UnitParams` names what exists."""

    recurrent: SparseMatrix
    input: SparseMatrix


class Probes(NamedTuple):
    """What is carried along."""

    gradients: Absent  # summed since the probes were set
    influence: Influence


def start(
    kernel: Kernel, cell: UnitCell, params: UnitParams, order: int, absent: tuple[Pattern, Pattern], batch_size: int
) -> Probes:
    """Probes at these absent recurrent and input weights, with no past."""
    dtype = param_dtype(params)
    gradients = Absent(*(SparseMatrix(jnp.zeros(pattern.nnz, dtype), pattern) for pattern in absent))
    return Probes(gradients, kernel.zeros(_blocks(cell, params, gradients, order), batch_size, dtype))


def replace(
    kernel: Kernel,
    cell: UnitCell,
    old: UnitParams,
    new: UnitParams,
    order: int,
    probes: Probes,
    absent: tuple[Pattern, Pattern],
) -> Probes:
    """Other probes in the place of those that followed `old`, on parameters of other patterns; with no past."""
    gradients = Absent(*(SparseMatrix(jnp.zeros(pattern.nnz, param_dtype(new)), pattern) for pattern in absent))
    before, after = _blocks(cell, old, probes.gradients, order), _blocks(cell, new, gradients, order)
    all_new = np.full(after.n_params, before.n_params)
    return Probes(gradients, kernel.carry_over(before, after, all_new, probes.influence))


def restart(kernel: Kernel, probes: Probes, where: jax.Array) -> Probes:
    """Probes that see a new sequence in the lanes where `where` [B] is True."""
    return probes._replace(influence=kernel.forget(probes.influence, where))


def follow(
    kernel: Kernel, cell: UnitCell, params: UnitParams, order: int, probes: Probes, s_0: jax.Array, xs: Any, deltas: Any
) -> Probes:
    """Takes the probes through a window of the network: from s_0, with inputs xs and dL/dh `deltas` [T, B, ...]."""
    jacobians, blocks = _jacobians(cell, params, probes.gradients), _blocks(cell, params, probes.gradients, order)
    trajectory = linearise(kernel, cell, jacobians, params, s_0, xs)
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


def structures(cell: UnitCell, params: UnitParams, order: int, probes: Probes) -> tuple[Structure, ...]:
    """What `follow` asks the kernel to work by."""
    blocks = _blocks(cell, params, probes.gradients, order)
    return blocks, *_jacobians(cell, params, probes.gradients).sums(blocks.dynamics, by_column=False)


def _jacobians(cell: UnitCell, params: UnitParams, absent: Absent) -> UnitJacobians:
    patterns = absent.recurrent.pattern, absent.input.pattern
    return UnitJacobians.of(cell, params.recurrent.pattern, params.input.pattern, patterns)


def _blocks(cell: UnitCell, params: UnitParams, absent: Absent, order: int) -> Blocks:
    jacobians = _jacobians(cell, params, absent)
    return influence_blocks(jacobians.groups, jacobians.dynamics, order)
