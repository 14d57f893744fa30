"""How the patterns of a run change: when, by which rule, and what is carried over.

Rules (sparsity/rewiring.py, sparsity/pruning.py) say which entries exist. Here is what a trainer needs around them: the
part of its carry that counts updates and remembers masks or probes; what the compiled loop does with that at every
update; and the change itself, between two calls of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.algorithms import probes as probing
from snapgrad.algorithms.interface import Algorithm, Params, State
from snapgrad.algorithms.linearised import Linearised, linearise
from snapgrad.algorithms.probes import Absent, ProbedCell, Probes
from snapgrad.cells.stack import Stack
from snapgrad.cells.unit import UnitParams
from snapgrad.kernels.base import Structure
from snapgrad.kernels.native import NativeKernel
from snapgrad.sparsity.matrix import SparseMatrix, map_matrices
from snapgrad.sparsity.moves import Move, Path, carry_over, matrices
from snapgrad.sparsity.pruning import Magnitude
from snapgrad.sparsity.rewiring import Probe, Rewiring

Rule = Rewiring | Magnitude


class Wiring(NamedTuple):
    """What a run carries along to change its patterns."""

    updates: jax.Array  # so far
    changed: jax.Array  # the update after which patterns were looked at last
    key: jax.Array
    masks: tuple[jax.Array, ...]  # of pruning: which of the stored entries of every matrix of the cell are active
    probes: Probes | None


class Network(NamedTuple):
    """The parts of a run that depend on the patterns."""

    params: Params
    opt_state: Any
    state: State
    wiring: Wiring


@dataclass(frozen=True, eq=False)
class Plasticity:
    """A rule, applied to the networks of one algorithm."""

    rule: Rule
    algorithm: Algorithm
    batch: int

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule):
            raise TypeError(
                "`rewire` must be a rule of sg.rewiring or sg.pruning such as sg.rewiring.SET(), "
                f"got {type(self.rule).__name__}"
            )

    def start(self, params: Params, state: State, key: jax.Array) -> tuple[State, Wiring]:
        """The beginning of a run; the state with room for influences of other patterns."""
        cell, rule = state.origin.cell, self.rule
        if isinstance(rule, Rewiring) and all(m.pattern.is_full for m in matrices(params.cell).values()):
            raise ValueError("`rewire` must be None for a cell without sparse matrices, got a rule and full ones only")
        if isinstance(rule, Rewiring) and rule.scores == "dense" and jax.tree.leaves(state.memory):
            raise ValueError(
                "`rewire` must be a rule without dense gradients for an algorithm that remembers more than the cell's "
                f"state, got {type(rule).__name__} with {state.origin.algorithm}"
            )
        state = self.algorithm.rewire(state, params, params)
        masks: tuple[jax.Array, ...] = ()
        probes = None
        if isinstance(rule, Magnitude):
            masks = tuple(jnp.ones(m.pattern.nnz, bool) for m in matrices(params.cell).values())
        if isinstance(rule, Probe):
            if not isinstance(cell, ProbedCell):
                raise ValueError(
                    f"`rewire` must be another rule than Probe for a cell that is not unit-wise or a stack, got {cell}"
                )
            kernel, absent = state.origin.kernel, self._candidates(cell, params, _draw(key, 0))
            probes = probing.start(kernel, cell, params.cell, rule.order, absent, self.batch)
            probes = probing.replace(kernel, cell, params.cell, params.cell, rule.order, probes, absent)
        return state, Wiring(jnp.int32(0), jnp.int32(0), key, masks, probes)

    def began(self, wiring: Wiring) -> bool:
        """Whether a wiring can have begun with this rule."""
        return (wiring.probes is not None) == isinstance(self.rule, Probe) and (
            not wiring.masks or isinstance(self.rule, Magnitude)
        )

    # ---- in the compiled loop

    def is_due(self, wiring: Wiring) -> jax.Array:
        """Whether the patterns are to be looked at before the next update."""
        begin = self.rule.begin if isinstance(self.rule, Magnitude) else 0
        return ((wiring.updates - begin) % self.rule.every == 0) & (wiring.updates != wiring.changed)

    def mask(self, wiring: Wiring, params: Params) -> Params:
        """Parameters or gradients without what is pruned."""
        if not wiring.masks:
            return params
        masks = iter(wiring.masks)
        return params._replace(
            cell=map_matrices(lambda m: SparseMatrix(jnp.where(next(masks), m.values, 0), m.pattern), params.cell)
        )

    def observe(
        self,
        wiring: Wiring,
        params: Params,
        state: State,
        window: Any,
        deltas: jax.Array,
        trajectory: Linearised | None,
    ) -> Wiring:
        """Counts an update, and takes the probes through the window before it; `state` is where the window began.

        Where the algorithm has no `trajectory`, the window is gone through once more.
        """
        wiring = wiring._replace(updates=wiring.updates + 1)
        if not isinstance(self.rule, Probe):
            return wiring
        assert wiring.probes is not None
        kernel, cell = state.origin.kernel, _probed(state)
        if trajectory is None:
            trajectory = linearise(kernel, cell, cell.jacobians(params.cell), params.cell, state.cell, window.xs)
        probes = probing.restart(kernel, wiring.probes, window.is_start)
        probes = probing.follow(kernel, cell, params.cell, self.rule.order, probes, trajectory, deltas)
        return wiring._replace(probes=probes)

    # ---- between two calls of the loop

    def change(self, network: Network, dense_gradient: Callable[[], Params]) -> tuple[Network, float]:
        """The network after its patterns have been looked at and, if the rule says so, changed; and the churn.

        Churn is the share of the weights that went, of those in matrices which are not left alone.
        """
        update = int(network.wiring.updates)
        network = network._replace(wiring=network.wiring._replace(changed=jnp.copy(network.wiring.updates)))
        if not self.rule.is_due(update):
            return network, 0.0
        if isinstance(self.rule, Magnitude):
            return self._prune(self.rule, network, update)
        return self._rewire(self.rule, network, update, dense_gradient)

    def _rewire(
        self, rule: Rewiring, network: Network, update: int, dense_gradient: Callable[[], Params]
    ) -> tuple[Network, float]:
        draw, gates = _draw(network.wiring.key, update), network.state.origin.cell.gates
        scores: dict[Path, SparseMatrix] = {}
        if rule.scores == "dense":
            scores = matrices(_only_cell(dense_gradient().cell))
        if network.wiring.probes is not None:
            scores = matrices(_only_cell(network.wiring.probes.gradients))
        moves = {
            path: Move.between(m.pattern, rule.rewire(m, gates, update, scores.get(path), draw))
            for path, m in matrices(_only_cell(network.params.cell)).items()
            if not m.pattern.is_full
        }
        moved = self._moved(network, moves)
        if isinstance(rule, Probe):
            assert moved.wiring.probes is not None
            cell, kernel, old, new = _probed(moved.state), moved.state.origin.kernel, network.params, moved.params
            probes = probing.replace(
                kernel, cell, old.cell, new.cell, rule.order, moved.wiring.probes, self._candidates(cell, new, draw)
            )
            moved = moved._replace(wiring=moved.wiring._replace(probes=probes))
        return moved, sum(move.added for move in moves.values()) / sum(move.old.nnz for move in moves.values())

    def _prune(self, rule: Magnitude, network: Network, update: int) -> tuple[Network, float]:
        origin, moves, masks, removed, before = network.state.origin, {}, [], 0, 0
        found = matrices(_only_cell(network.params.cell))
        for (path, matrix), mask in zip(found.items(), map(np.asarray, network.wiring.masks), strict=True):
            stays, pattern = mask, matrix.pattern
            if rule.inputs or path[-1] != jax.tree_util.GetAttrKey("input"):
                stays = rule.prune(matrix, mask, origin.cell.gates, update)
            removed, before = removed + int(mask.sum() - stays.sum()), before + int(mask.sum())
            density = stays.sum() / max(1, pattern.shape[0] * pattern.shape[1])
            if update == rule.end or (density < origin.kernel.dense_from_density and 2 * stays.sum() <= pattern.nnz):
                packed = type(pattern)(pattern.rows[stays], pattern.cols[stays], pattern.shape)
                moves[path] = Move.between(pattern, packed)
                masks.append(jnp.ones(packed.nnz, bool))
            else:
                moves[path] = Move(pattern, pattern, np.where(stays, np.arange(pattern.nnz), pattern.nnz))
                masks.append(jnp.asarray(stays))
        moved = self._moved(network, moves)
        return moved._replace(wiring=moved.wiring._replace(masks=tuple(masks))), removed / before

    def _moved(self, network: Network, moves: Mapping[Path, Move]) -> Network:
        params = carry_over(network.params, moves)
        state = self.algorithm.rewire(network.state, network.params, params)
        return network._replace(params=params, opt_state=carry_over(network.opt_state, moves), state=state)

    def _candidates(self, cell: ProbedCell, params: Params, draw: np.random.Generator) -> Any:
        rule = self.rule
        assert isinstance(rule, Probe)

        def of_layer(own: UnitParams) -> Absent:
            return Absent(*(rule.candidates(m.pattern, cell.gates, draw) for m in (own.recurrent, own.input)))

        return tuple(map(of_layer, params.cell)) if isinstance(cell, Stack) else of_layer(params.cell)

    def structures(self, network: Network) -> tuple[Structure, ...] | None:
        """What the native kernel of the compiled loop works by, in a fixed order (`Algorithm.structures`).

        None for other kernels, and for pruning: there sizes go down, so that a new program is worth its compilation.
        """
        if isinstance(self.rule, Magnitude) or not isinstance(network.state.origin.kernel, NativeKernel):
            return None
        own = self.algorithm.structures(network.params)
        if own is None or not isinstance(self.rule, Probe):
            return own
        assert network.wiring.probes is not None
        cell, params = _probed(network.state), network.params.cell
        probed = probing.structures(cell, params, self.rule.order, network.wiring.probes)
        return None if probed is None else (*own, *probed)


def _probed(state: State) -> ProbedCell:
    assert isinstance(state.origin.cell, ProbedCell)  # `start` has seen to it
    return state.origin.cell


def density(params: Params, wiring: Wiring | None) -> float:
    """The share of the entries of the cell's matrices that exist and are not masked."""
    found = list(matrices(params.cell).values())
    masks = wiring.masks if wiring is not None and wiring.masks else ()
    active = sum(int(np.asarray(mask).sum()) for mask in masks) if masks else sum(m.pattern.nnz for m in found)
    return active / max(1, sum(m.shape[0] * m.shape[1] for m in found))


def _only_cell(cell: Any) -> Params:
    return Params(cell=cell, readout=None)


def _draw(key: jax.Array, update: int) -> np.random.Generator:
    """Random numbers that follow from the run's key and the update, so that a resumed run draws the same."""
    return np.random.default_rng([*np.asarray(jax.random.key_data(key)).ravel().tolist(), update])
