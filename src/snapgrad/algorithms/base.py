"""What all algorithms share.

A window of T steps is always taken in three parts; an algorithm says only how the first and the last are done:

    forward    s_1 .. s_T from s_0 and x_1 .. x_T                            (the algorithm's `window`)
    readout    L_t, dL_t/dreadout and delta_t = dL_t/dh_t of all steps      (here)
    backward   the cell's gradient from delta_1 .. delta_T                  (the function that `window` returned)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from snapgrad import arguments, memory
from snapgrad.algorithms import checks
from snapgrad.algorithms.interface import Algorithm, Gradient, Info, Loss, Origin, Params, State
from snapgrad.algorithms.placement import EVERYWHERE, LANES, ONE_DEVICE, WINDOW, Placement, fetch
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels import select
from snapgrad.kernels.base import Kernel, Structure
from snapgrad.kernels.select import Backend
from snapgrad.kernels.share import ALL, varying
from snapgrad.readouts import ReadoutLoss
from snapgrad.tasks.base import count_outside


class Outcome(NamedTuple):
    """What a window leaves behind."""

    grads: PyTree  # shaped like the cell's parameters
    cell: PyTree  # the cell's state after the window
    memory: PyTree  # the algorithm's memory after it


def _cannot_transfer(kernel: Kernel, memory: PyTree, old: PyTree, new: PyTree) -> PyTree:
    raise ValueError("`rewire` must be None for an algorithm that does not say what becomes of its memory")


class Rule(NamedTuple):
    """What an algorithm has to say for itself.

    start(kernel, cell_params, batch_size, key) -> memory
    window(kernel, cell_params, s_0, memory, xs) -> hs [T, B, ...], and a function deltas [T, B, ...] -> Outcome
    restart(kernel, memory, where) -> memory with a new sequence in those lanes
    transfer(kernel, memory, old, new) -> memory for the cell's parameters `new`, whose patterns are not those of `old`
    structures(cell_params) -> what `window` asks the kernel to work by, beside the cell's matrices; or None if the
        program depends on the patterns in other ways too
    check_memory(cell_params, batch_size, part) refuses what cannot fit, where finding out by `start` would take too
        long; `part` of it lies in one memory
    axes(kernel) -> how the memory of all devices of a mesh is split, as `jax.shard_map` takes it
    owners(kernel, cell_params) -> which device along `params` has the gradient of each parameter; None: they all do
    relay(kernel, other, cell_params, memory, batch_size) -> the memory of all devices for the `other` kernel's mesh
    """

    start: Callable[[Kernel, PyTree, int, Any], PyTree]
    window: Callable[[Kernel, PyTree, PyTree, PyTree, Any], tuple[jax.Array, Callable[[jax.Array], Outcome]]]
    restart: Callable[[Kernel, PyTree, jax.Array], PyTree]
    transfer: Callable[[Kernel, PyTree, PyTree, PyTree], PyTree] = _cannot_transfer
    structures: Callable[[PyTree], tuple[Structure, ...] | None] = lambda params: None
    check_memory: Callable[[PyTree, int, float], None] = lambda params, batch_size, part: None
    axes: Callable[[Kernel], Any] = lambda kernel: LANES
    owners: Callable[[Kernel, PyTree], NDArray[np.int64] | None] = lambda kernel, params: None
    relay: Callable[[Kernel, Kernel, PyTree, PyTree, int], PyTree] = lambda kernel, other, params, memory, batch: memory


def memoryless(window: Callable[..., Any], structures: Callable[[PyTree], Any] = lambda params: ()) -> Rule:
    """The rule of an algorithm that remembers nothing beside the cell's state."""
    return Rule(
        start=lambda kernel, params, batch_size, key: (),
        window=window,
        restart=lambda kernel, memory, where: memory,
        transfer=lambda kernel, memory, old, new: memory,
        structures=structures,
    )


def build(
    name: str,
    cell: Cell,
    loss: Loss,
    rule: Rule,
    backend: Backend,
    *,
    episodic: bool = False,
    placement: Placement = ONE_DEVICE,
) -> Algorithm:
    """Makes an `Algorithm` of a rule: checks the arguments, adds the loss and the readout's gradient."""
    checks.cell(cell)
    checks.loss(loss)
    select.check(backend)
    seen: set[Any] = set()  # signatures of arguments that have passed the checks
    share = placement.share

    def kernel_for(params: Params) -> Kernel:
        kernel = select.kernel(backend, param_dtype(params.cell))
        return kernel if share == ALL else kernel.sharing(share)

    def origin(params: Params) -> Origin:
        return Origin(name, kernel_for(params), cell, jax.tree.structure(params.cell))

    def specs(origin: Origin) -> State:
        return State(LANES, rule.axes(origin.kernel), origin)

    def init(params: Params, batch_size: int, key: jax.Array | None = None) -> State:
        checks.params(cell, params)
        arguments.positive_integer("batch_size", batch_size)
        if key is not None:
            arguments.key("key", key)
        if batch_size % share.batch:
            along = f"the {share.batch} devices along `batch` of the mesh"
            raise ValueError(f"`batch_size` must be a multiple of {along}, got {batch_size}")
        made_by = origin(params)

        def start_here(params: Params, key: jax.Array | None) -> State:
            lanes = batch_size // share.batch
            started = rule.start(made_by.kernel, params.cell, lanes, key)
            return State(initial_states(cell, params.cell, lanes), started, made_by)

        start = placement.map(start_here, (EVERYWHERE, EVERYWHERE), specs(made_by))
        rule.check_memory(params.cell, batch_size, placement.part_in_memory)
        made = jax.eval_shape(start, params, key)
        memory.check_state(f"{name} on {cell}", params, made, batch_size, placement.part_in_memory)
        return start(params, key) if placement.mesh is None else jax.jit(start)(params, key)

    def grad(params: Params, state: State, xs: Any, targets: Any) -> tuple[Gradient, State]:
        xs, targets = checks.as_window(xs, targets)
        checks.target_values(loss, targets)
        # The other checks see types, shapes and patterns only, so what has passed once need not be looked at again.
        leaves, structure = jax.tree.flatten((params, state, xs, targets))
        signature = structure, tuple(map(checks.signature, leaves))
        if signature not in seen:
            checks.params(cell, params)
            checks.state(state, origin(params))
            checks.window(cell, params, state, xs, targets)
            seen.add(signature)
        return compute(params, state, xs, targets)

    @jax.jit
    def compute(params: Params, state: State, xs: jax.Array, targets: Any) -> tuple[Gradient, State]:
        states = specs(state.origin)
        gradients = Gradient(EVERYWHERE, EVERYWHERE, Info(EVERYWHERE, WINDOW, WINDOW, EVERYWHERE))
        step = placement.map(step_here, (EVERYWHERE, states, WINDOW, WINDOW), (gradients, states))
        return step(params, state, xs, targets)

    def step_here(params: Params, state: State, xs: jax.Array, targets: Any) -> tuple[Gradient, State]:
        kernel = state.origin.kernel
        # What is differentiated by must be a device's own, or JAX would sum over all of them at every step.
        params, s_0 = varying((params, state.cell), xs)
        hs, backward = rule.window(kernel, params.cell, s_0, state.memory, xs)
        checks.loss_value(loss, params.readout, hs, targets)
        losses, readout_grads, deltas = readout_gradient(loss, params.readout, hs, targets, share.batch)
        outcome = backward(deltas)
        outside = count_outside(targets, loss.readout.classes) if isinstance(loss, ReadoutLoss) else jnp.int32(0)
        # Losses, which every trainer looks at, travel with the gradients: one message is faster than two.
        sums = readout_grads, placement.among_all_lanes(losses), outside.astype(jnp.float32)
        sums, cell_grads = placement.sum(sums, outcome.grads, rule.owners(kernel, params.cell))
        readout_grads, losses, outside = sums
        value, outside = jnp.sum(jnp.mean(losses, axis=1)), outside.astype(jnp.int32)
        gradient = Gradient(value, Params(cell_grads, readout_grads), Info(losses, hs, deltas, outside))
        return gradient, State(outcome.cell, outcome.memory, state.origin)

    def reset(state: State, where: Any) -> State:
        checks.maker(state, name, cell, share)
        where = arguments.array("where", where)
        checks.where(where, state)
        return restart(state, where)

    def restart(state: State, where: jax.Array) -> State:
        states = specs(state.origin)
        return placement.map(restart_here, (states, LANES), states)(state, where)

    def restart_here(state: State, where: jax.Array) -> State:
        fresh = jax.tree.map(lambda leaf, s: leaf.astype(s.dtype), cell.initial_state(), state.cell)
        restarted = jax.tree.map(lambda s, s_0: select_lanes(where, s_0[None], s), state.cell, fresh)
        return State(restarted, rule.restart(state.origin.kernel, state.memory, where), state.origin)

    if placement.mesh is not None:
        restart = jax.jit(restart)

    def gather(state: State, params: Params) -> State:
        checks.params(cell, params)
        checks.state(state, origin(params))
        return state if placement.mesh is None else move(fetch(state), params, kernel_for(params), ONE_DEVICE)

    def scatter(state: State, params: Params) -> State:
        checks.params(cell, params)
        whole = kernel_for(params).sharing(ALL)
        checks.state(state, dataclasses.replace(origin(params), kernel=whole))
        return state if placement.mesh is None else move(fetch(state), params, whole, placement)

    def move(state: State, params: Params, kernel: Kernel, to: Placement) -> State:
        """A state of all devices, in this process's memory, from the mesh that its kernel is for to another."""
        lanes = len(jax.tree.leaves(state.cell)[0])
        made_by = dataclasses.replace(origin(params), kernel=kernel.sharing(to.share))
        moved = rule.relay(kernel, made_by.kernel, params.cell, state.memory, lanes)
        return to.put(State(state.cell, moved, made_by), specs(made_by))

    def rewire(state: State, old: Params, new: Params) -> State:
        if placement.mesh is not None:
            raise ValueError("`rewire` must be called for an algorithm on one device, got one on a mesh")
        checks.params(cell, old)
        checks.params(cell, new)
        checks.state(state, origin(old))
        moved = rule.transfer(kernel_for(old), state.memory, old.cell, new.cell)
        return State(state.cell, moved, origin(new))

    def structures(params: Params) -> tuple[Structure, ...] | None:
        checks.params(cell, params)
        multiplied, own = cell.multiplied(params.cell), rule.structures(params.cell)
        return None if multiplied is None or own is None else (*multiplied, *own)

    def on(placement: Placement) -> Algorithm:
        return build(name, cell, loss, rule, backend, episodic=episodic, placement=placement)

    made = (init, grad, reset, rewire, structures, gather, scatter, on)
    return Algorithm(*made, name, cell, loss, episodic, placement)


def initial_states(cell: Cell, params: PyTree, batch_size: int) -> PyTree:
    """The cell's initial state for a batch, in the parameters' dtype."""
    dtype = param_dtype(params)
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf.astype(dtype), (batch_size, *leaf.shape)), cell.initial_state()
    )


def param_dtype(params: PyTree) -> Any:
    """The dtype that states and influences take."""
    return jnp.result_type(*jax.tree.leaves(params))


def propagation(cell: Cell, ready: PyTree, s_tm1: PyTree, x_t: Any) -> Callable[[jax.Array], jax.Array]:
    """The product with D_t of one example, as a function of a flat direction in state space."""
    flat_s, unravel = ravel_pytree(s_tm1)
    _, by_D = jax.linearize(lambda flat_s: ravel_pytree(cell.step(ready, unravel(flat_s), x_t))[0], flat_s)

    def product(direction: jax.Array) -> jax.Array:
        try:
            return by_D(direction)
        except TypeError as error:
            if "custom_vjp" not in str(error):
                raise
            needed = "`cell` must have derivatives in forward mode for this algorithm"
            raise ValueError(f"{needed}, got {cell}, whose jax.custom_vjp has none") from None

    return product


class Trajectory(NamedTuple):
    """What a batch goes through in a window of T steps."""

    before: PyTree  # [T, B, ...] s_0 .. s_{T-1}
    last: PyTree  # [B, ...] s_T
    outputs: jax.Array  # [T, B, ...] h_1 .. h_T


def batched_step(kernel: Kernel, cell: Cell, params: PyTree) -> Callable[[PyTree, Any], tuple[PyTree, jax.Array]]:
    """(s_tm1, x_t) -> (s_t, h_t) for a batch; what depends on `params` alone is done once."""
    ready = kernel.ready(params)

    def step(s_tm1: PyTree, x_t: Any) -> tuple[PyTree, jax.Array]:
        s_t = jax.vmap(cell.step, in_axes=(None, 0, 0))(ready, s_tm1, x_t)
        return s_t, jax.vmap(cell.output)(s_t)

    return step


def unroll(kernel: Kernel, cell: Cell, params: PyTree, s_0: PyTree, xs: Any) -> Trajectory:
    """Runs a batch over a window, forward only."""
    step_batch = batched_step(kernel, cell, params)

    def step(s_tm1: PyTree, x_t: Any) -> tuple[PyTree, tuple[PyTree, jax.Array]]:
        s_t, h_t = step_batch(s_tm1, x_t)
        return s_t, (s_tm1, h_t)

    s_T, (before, outputs) = jax.lax.scan(step, s_0, xs)
    return Trajectory(before, s_T, outputs)


def readout_gradient(
    loss: Loss, readout: PyTree, hs: jax.Array, targets: Any, shards: int = 1
) -> tuple[jax.Array, PyTree, jax.Array]:
    """Losses [T, B], dL/dreadout and deltas dL/dh [T, B, ...], for all steps in one batch, one of so many `shards`."""

    def objective(readout: PyTree, hs: jax.Array) -> tuple[jax.Array, jax.Array]:
        over_batch = jax.vmap(loss, in_axes=(None, 0, 0))
        losses = jax.vmap(over_batch, in_axes=(None, 0, 0))(readout, hs, targets)
        return jnp.sum(jnp.mean(losses, axis=1)) / shards, losses

    (readout_grads, deltas), losses = jax.grad(objective, argnums=(0, 1), has_aux=True)(readout, hs)
    return losses, readout_grads, deltas


def state_deltas(cell: Cell, trajectory: Trajectory, deltas: jax.Array) -> jax.Array:
    """dL/ds [T, B, states], flat, from dL/dh [T, B, ...]: back through the cell's `output`."""
    after = jax.tree.map(
        lambda before, last: jnp.concatenate([before[1:], last[None]]), trajectory.before, trajectory.last
    )

    def one(s_t: PyTree, delta_t: jax.Array) -> jax.Array:
        return ravel_pytree(jax.vjp(cell.output, s_t)[1](delta_t)[0])[0]

    return jax.vmap(jax.vmap(one))(after, deltas)


def select_lanes(where: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """`new` in the lanes [B] where `where` is True, `old` in the others."""
    return jnp.where(where.reshape(-1, *([1] * (old.ndim - 1))), new, old)
