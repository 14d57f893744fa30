"""The one interface of all algorithms: what they take, what they return, what is carried between windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from snapgrad.algorithms.linearised import Linearised
from snapgrad.algorithms.placement import Placement
from snapgrad.cells.base import Cell, PyTree
from snapgrad.kernels.base import Kernel, Structure
from snapgrad.kernels.share import ALL

Loss = Callable[[PyTree, jax.Array, Any], jax.Array]  # (readout, h, target) of one example at one step -> scalar


class Params(NamedTuple):
    """What is trained: the cell's parameters and the readout's, any pytrees."""

    cell: PyTree
    readout: PyTree


class Info(NamedTuple):
    """Diagnostics of a window; nothing here is needed to go on."""

    losses: jax.Array  # [T, B] loss of every example at every step
    outputs: jax.Array  # [T, B, ...] what the readout saw, h of every step; costs nothing under jit if it is not used
    deltas: jax.Array  # [T, B, ...] dL/dh of every step; likewise
    outside: jax.Array  # how many targets a readout's loss does not know (neither class nor padding) and has left out


class Gradient(NamedTuple):
    """The result of a window: the objective, its gradient shaped like the parameters, and diagnostics."""

    loss: jax.Array  # sum over steps of the mean over the batch
    grads: Params
    info: Info


@dataclass(frozen=True)
class Origin:
    """Who made a state: compared, so that a state cannot be given to another algorithm or network."""

    algorithm: str
    kernel: Kernel
    cell: Cell
    structure: Any  # tree structure of the cell's parameters, with their sparsity patterns

    def __str__(self) -> str:
        share = self.kernel.share
        mesh = "" if share == ALL else f", mesh batch={share.batch}, params={share.params}"
        return f"{self.algorithm} on {self.cell}, {self.kernel.name} backend{mesh}"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class State:
    """What is carried from window to window. It can be copied, pickled, and mapped over as any pytree."""

    cell: PyTree  # [B, ...] the cell's own state; of a unit-wise cell [B, states, units], component 0 of which is h
    memory: PyTree  # what the algorithm remembers beside it: an influence, random vectors, or ()
    origin: Origin = field(metadata={"static": True})


class Algorithm(NamedTuple):
    """A way to compute gradients of a recurrent cell: pure functions, and what they were made for.

    init(params, batch_size, key=None) -> state
        The state of `batch_size` sequences about to start. Only the random ones (`uoro`, `kf_rtrl`, `ok`) and the
        rounding of an influence in bfloat16 use the key. Refuses what would not fit into memory.
    grad(params, state, xs, targets) -> (Gradient, state)
        The gradient over a window xs [T, B, ...], targets [T, B, ...] (any pytree), and the state to go on from. T = 1
        is fully online. It compiles once a window shape, and can be used inside `jit`, `scan` and `vmap`. An episodic
        algorithm starts every window afresh and ignores the state's content.
    grad_along(params, state, xs, targets) -> (Gradient, state, trajectory)
        The same, with the derivatives of every step of the window, where the algorithm has worked them out on one
        device; otherwise None. Whoever follows the network along the window need not work them out again.
    reset(state, where) -> state
        Starts a new sequence in the lanes where `where` [B] is True, and leaves the others as they are.
    rewire(state, old, new) -> state
        Moves a state from the parameters `old` to `new`, which differ in the sparsity patterns of the cell. What
        belongs to entries that stay is kept, what belongs to new ones starts at zero. Not for use inside jit.
    structures(params) -> tuple or None
        What a kernel works by on parameters of these patterns, in a fixed order. `grad` depends on the patterns in this
        way only, so that one compiled program can serve all patterns of these sizes; None if it depends on them more.
    gather(state, params) -> state, scatter(state, params) -> state
        To and from the state that the algorithm has on one device, where it runs on a mesh (`sg.shard`): what is saved,
        and goes on with any mesh. Not for use inside jit. On one device, nothing is changed.
    pieces(state, params) -> state
        As `gather`, but where that would bring arrays together there are `Pieces`, which give one slice after another.
    on(placement) -> Algorithm
        The same algorithm elsewhere; `sg.shard` calls it.
    """

    init: Callable[..., State]
    grad: Callable[[Params, State, Any, Any], tuple[Gradient, State]]
    grad_along: Callable[[Params, State, Any, Any], tuple[Gradient, State, Linearised | None]]
    reset: Callable[[State, Any], State]
    rewire: Callable[[State, Params, Params], State]
    structures: Callable[[Params], tuple[Structure, ...] | None]
    gather: Callable[[State, Params], State]
    scatter: Callable[[State, Params], State]
    pieces: Callable[[State, Params], State]
    on: Callable[[Placement], Algorithm]
    name: str  # with its options, such as "snap(order=2)"
    cell: Cell
    loss: Loss
    episodic: bool  # whether every window must be a whole sequence
    placement: Placement
