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

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from snapgrad import arguments, memory
from snapgrad.algorithms import checks
from snapgrad.algorithms.base import (
    Outcome,
    Rule,
    build,
    param_dtype,
)
from snapgrad.algorithms.episodic import backward_in_time
from snapgrad.algorithms.interface import Algorithm, Loss
from snapgrad.algorithms.linearised import lane_deltas, linearise
from snapgrad.algorithms.placement import EVERYWHERE
from snapgrad.algorithms.propagation import Propagation
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels import rounding
from snapgrad.kernels.base import Influence, Kernel, Structure
from snapgrad.kernels.select import Backend
from snapgrad.kernels.share import varying
from snapgrad.sparsity.moves import parameter_sources
from snapgrad.sparsity.partition import block_owners
from snapgrad.sparsity.reach import Blocks


class Memory(NamedTuple):
    """The influence, and what the rounding of its next step is drawn from (None where it is not rounded)."""

    J: Influence
    rounding: jax.Array | None


def snap(
    cell: Cell,
    loss: Loss,
    *,
    order: int | None,
    episodic: bool = False,
    influence_dtype: Any = None,
    backend: Backend = "auto",
) -> Algorithm:
    """SnAp-n: forward in time, in constant memory, with an update at every step if wanted.

    Args:
        cell: the recurrent cell.
        loss: (readout, h, target) -> scalar for one example at one step.
        order: n >= 1, how many steps an influence may take to reach a state entry; None for exact RTRL.
        episodic: declares that every window is one whole sequence: it starts from reset and ends the sequence. The
            gradient is the same, computed the far cheaper way of `algorithms/episodic.py`.
        influence_dtype: what J is stored in: the parameters' dtype for None, or "bfloat16" for half the memory, with
            arithmetic still in float32. It is rounded stochastically: unbiased, but the gradient gets noise of a
            percent or so where influence lasts for hundreds of steps; the `key` of `init` seeds it.
        backend: "native" (C++, CPU), "reference" (plain JAX, any device), or "auto": native wherever it can run.
            Only the reference's gradients can be differentiated once more (meta-learning).
    """
    arguments.order(order)
    checks.episodic(episodic, influence_dtype)
    propagation, name = Propagation(order), f"snap(order={order}"
    if episodic:
        return build(f"{name}, episodic)", cell, loss, backward_in_time(cell, propagation), backend, episodic=True)
    rule = forward_in_time(cell, propagation, influence_dtype)
    return build(f"{name}){stored_in(influence_dtype)}", cell, loss, rule, backend)


def stored_in(influence_dtype: Any) -> str:
    """What the name of an algorithm says about how J is stored: states of one are not for the other."""
    return "" if influence_dtype is None else " in bfloat16"


def forward_in_time(cell: Cell, propagation: Propagation, influence_dtype: Any) -> Rule:
    """Carries the influence J with the state."""
    arguments.influence_dtype(influence_dtype)

    def start(kernel: Kernel, params: PyTree, batch_size: int, key: Any) -> Memory:
        dtype = param_dtype(params)
        if influence_dtype is not None and dtype != jnp.float32:
            raise ValueError(f"`params` must be float32 with an `influence_dtype` of bfloat16, got {dtype}")
        if influence_dtype is None:
            return Memory(kernel.zeros(blocks_of(params), batch_size, dtype), None)
        return Memory(kernel.zeros(blocks_of(params), batch_size, jnp.bfloat16), rounding.start(key))

    def window(kernel: Kernel, params: PyTree, s_0: PyTree, memory: Memory, xs: Any) -> tuple[jax.Array, Any]:
        jacobians = cell.jacobians(params)
        trajectory = linearise(kernel, cell, jacobians, params, s_0, xs)

        def backward(deltas: jax.Array) -> Outcome:
            blocks = propagation.blocks(jacobians)
            immediate_at = jacobians.immediate_at(kernel, params)
            dynamics_at = propagation.dynamics_at(kernel, jacobians, params, xs.shape[1])

            def step(carry: tuple[Influence, jax.Array], at_t: Any) -> Any:
                J_tm1, g = carry
                local_t, delta_t, noise_t = at_t
                J_t, g_t = kernel.influence_step(
                    blocks, J_tm1, dynamics_at(local_t), immediate_at(local_t), delta_t, noise_t
                )
                return (J_t, g + g_t), None

            flat, unravel = ravel_pytree(params)
            g = jnp.zeros(flat.shape, flat.dtype)  # of one piece, which XLA knows to be zero: one step adds nothing
            noise = after = None
            if memory.rounding is not None:
                steps, lanes = xs.shape[:2]
                draw = lambda lanes: rounding.noise(memory.rounding, steps, lanes)  # noqa: E731
                noise = kernel.share.of_lanes(draw, lanes, axis=2)
                after = rounding.advance(memory.rounding, xs.shape[0])
            at = trajectory.local, lane_deltas(cell, trajectory, deltas), noise
            J_0 = varying(memory.J, at)
            (J_T, g), _ = jax.lax.scan(step, (J_0, varying(g, J_0)), at)
            return Outcome(unravel(g), trajectory.last, Memory(J_T, after), trajectory)

        return trajectory.outputs, backward

    def restart(kernel: Kernel, memory: Memory, where: jax.Array) -> Memory:
        return memory._replace(J=kernel.forget(memory.J, where))

    def blocks_of(params: PyTree) -> Blocks:
        return propagation.blocks(cell.jacobians(params))

    def transfer(kernel: Kernel, memory: Memory, old: PyTree, new: PyTree) -> Memory:
        sources = parameter_sources(old, new)
        return memory._replace(J=kernel.carry_over(blocks_of(old), blocks_of(new), sources, memory.J))

    def structures(params: PyTree) -> tuple[Structure, ...] | None:
        blocks = blocks_of(params)
        sums = cell.jacobians(params).sums(blocks.dynamics, by_column=False)
        return None if sums is None else (blocks, *sums)

    def check_memory(params: PyTree, batch_size: int, part: float) -> None:
        itemsize = (param_dtype(params) if influence_dtype is None else jnp.dtype(jnp.bfloat16)).itemsize
        memory.check_influence(cell, params, propagation.order, batch_size, itemsize, part=part)

    def axes(kernel: Kernel) -> Memory:
        return Memory(kernel.influence_axes(), None if influence_dtype is None else EVERYWHERE)

    def owners(kernel: Kernel, params: PyTree) -> NDArray[np.int64] | None:
        return block_owners(blocks_of(params), kernel.share.params)

    def resharding(kernel: Kernel, params: PyTree, batch_size: int) -> Memory:
        return axes(kernel)._replace(J=kernel.influence_resharding(blocks_of(params), batch_size))

    return Rule(start, window, restart, transfer, structures, check_memory, axes, owners, resharding)
