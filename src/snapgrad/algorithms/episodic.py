"""The gradient of SnAp, or of RFLO, over a whole sequence, without any J.

If a window starts from reset and ends its sequence, the sum of delta_t . J_t can be taken from the other end: it is
backpropagation in which every group of parameters sees only its own subnetwork R. With one column Lambda[., b] for each
group b, kept at the rows R_b:

    Lambda_t[R_b, b] = delta_t[R_b] + D_{t+1}[R_b, R_b]^T Lambda_{t+1}[R_b, b]
    g_b              = sum_t  Lambda_t[E_b, b] . I_t[E_b, P_b]            E_b: what the group touches at once

A step costs nnz(D[R_b, R_b]) multiply-adds a group, instead of that for each of its parameters. For RFLO D is its decay
times the identity and R_b = E_b: one multiply-add for each entry of Lambda.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from snapgrad import memory
from snapgrad.algorithms.base import (
    Outcome,
    Rule,
    initial_states,
    memoryless,
    param_dtype,
)
from snapgrad.algorithms.linearised import lane_deltas, linearise
from snapgrad.algorithms.propagation import Propagation
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels.base import Credit, Kernel, Structure
from snapgrad.kernels.share import varying
from snapgrad.sparsity.partition import block_owners


def backward_in_time(cell: Cell, propagation: Propagation) -> Rule:
    """The rule where `episodic=True`: nothing is remembered between windows."""

    def window(kernel: Kernel, params: PyTree, s_0: PyTree, _: PyTree, xs: Any) -> tuple[jax.Array, Any]:
        s_0 = varying(initial_states(cell, params, xs.shape[1]), xs)  # every window is a new sequence
        jacobians = cell.jacobians(params)
        trajectory = linearise(kernel, cell, jacobians, params, s_0, xs)

        def backward(deltas: jax.Array) -> Outcome:
            blocks = propagation.blocks(jacobians)
            dynamics_at = propagation.dynamics_at(kernel, jacobians, params, xs.shape[1], by_column=True)
            pull = jacobians.pull_at(kernel, params)

            def step(Lambda: Credit, at_t: Any) -> tuple[Credit, jax.Array]:
                local_t, delta_t = at_t
                Lambda, credit = kernel.credit_step(blocks, Lambda, dynamics_at(local_t), delta_t)
                return Lambda, pull(local_t, credit)

            delta = lane_deltas(cell, trajectory, deltas)
            zero = varying(kernel.zero_credit(blocks, xs.shape[1], param_dtype(params)), delta, kernel.share.part)
            _, pulled = jax.lax.scan(step, zero, (trajectory.local, delta), reverse=True)
            own_params, local = varying((params, trajectory.local), pulled)
            return Outcome(jacobians.collect(kernel, own_params, local, pulled), s_0, (), trajectory)

        return trajectory.outputs, backward

    def structures(params: PyTree) -> tuple[Structure, ...] | None:
        jacobians = cell.jacobians(params)
        blocks = propagation.blocks(jacobians)
        sums = jacobians.sums(blocks.dynamics, by_column=True)
        return None if sums is None else (blocks, *sums)

    def check_memory(params: PyTree, batch_size: int, part: float) -> None:
        itemsize = param_dtype(params).itemsize
        memory.check_influence(cell, params, propagation.order, batch_size, itemsize, part=part, episodic=True)

    def owners(kernel: Kernel, params: PyTree) -> NDArray[np.int64] | None:
        return block_owners(propagation.blocks(cell.jacobians(params)), kernel.share.params)

    return memoryless(window, structures)._replace(check_memory=check_memory, owners=owners)
