"""Rules by which a sparse network rewires itself: the smallest weights go, as many others come.

All of them keep the number of entries in every gate of every matrix, and leave full matrices alone. They differ in
where new entries come: at random (SET), or where a score, the gradient of a weight that does not exist, is largest.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snapgrad import arguments
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.pattern import Pattern


@dataclass(frozen=True)
class Rewiring:
    """What all rules share; use one of its subclasses.

    Args:
        every: updates between two rewirings.
        share: of the entries that are exchanged at each.
        end: the update after which patterns stay as they are. Until then the share falls along a cosine, as Evci et
            al. (2020) have it: share / 2 (1 + cos(pi t / end)). None: the share is constant, without an end.
    """

    every: int = 1000
    share: float = 0.3
    end: int | None = None

    # What tells where to grow: nothing; the gradient at every position; or that of a random sample of absent entries.
    scores: ClassVar[Literal["none", "dense", "sampled"]]
    keeps_fan_in: ClassVar[bool] = False  # whether entries are exchanged within rows

    def __post_init__(self) -> None:
        arguments.positive_integer("every", self.every)
        if not isinstance(self.share, numbers.Real) or not 0 < self.share <= 1:
            raise ValueError(f"`share` must be a number in (0, 1], got {arguments.shown(self.share)}")
        if self.end is not None:
            arguments.positive_integer("end", self.end)

    def is_due(self, update: int) -> bool:
        """Whether patterns change after that many updates."""
        return update > 0 and update % self.every == 0 and (self.end is None or update < self.end)

    def share_at(self, update: int) -> float:
        """The share that is exchanged after that many updates."""
        if self.end is None:
            return self.share
        return self.share / 2 * (1 + math.cos(math.pi * min(update / self.end, 1)))

    def rewire(
        self, matrix: SparseMatrix, gates: int, update: int, scores: SparseMatrix | None, draw: np.random.Generator
    ) -> Pattern:
        """The new pattern of a matrix of stacked gates; `scores` are those of entries that may come."""
        cols, size = matrix.shape[1], matrix.shape[0] * matrix.shape[1] // gates
        values, at = np.abs(np.asarray(matrix.values)), matrix.pattern.flat
        magnitudes = np.zeros(0) if scores is None else np.abs(np.asarray(scores.values))
        scored = np.zeros(0, np.int64) if scores is None else scores.pattern.flat
        line = np.arange(size) // (cols if self.keeps_fan_in else size)
        chosen = []
        for gate, exists in enumerate(_by_gate(matrix.pattern, gates)):
            own, here = (positions[positions // size == gate] - gate * size for positions in (at, scored))
            count = min(round(self.share_at(update) * len(own)), size - len(own))
            dropped = own[np.argsort(values[at // size == gate], kind="stable")[:count]]
            needed, stays = np.bincount(line[dropped], minlength=line[-1] + 1), exists.copy()
            stays[dropped] = False
            free = ~stays[here]
            grown = _first(here[free], -magnitudes[scored // size == gate][free], line, needed)
            stays[grown] = True
            needed -= np.bincount(line[grown], minlength=len(needed))
            # At random where there are no scores, or too few; what was dropped comes last.
            free = np.flatnonzero(~stays & (needed > 0)[line])
            stays[_first(free, exists[free] + draw.random(len(free)), line, needed)] = True
            chosen.append(gate * size + np.flatnonzero(stays))
        flat = np.concatenate(chosen)
        return Pattern(flat // cols, flat % cols, matrix.shape)


@dataclass(frozen=True)
class SET(Rewiring):
    """Sparse evolutionary training (Mocanu et al. 2018): new entries come at random, where there were none."""

    scores = "none"


@dataclass(frozen=True)
class RigL(Rewiring):
    """Rigging the lottery (Evci et al. 2020): new entries come where the gradient of the dense network is largest.

    The gradient is that of the next window. It needs backpropagation: on a dense network an influence would be too
    large, so the algorithm must be one that remembers nothing between windows. An entry that is dropped and has one of
    the largest gradients stays, with its weight, as in the authors' implementation.
    """

    scores = "dense"


@dataclass(frozen=True)
class Probe(Rewiring):
    """New entries come where, in a random sample, the gradient that SnAp gives to absent entries is largest.

    Every row keeps its number of entries: a unit looks for better inputs, not for more of them. Without that, much
    credit and many inputs meet in few units, and what SnAp-2 has to keep of J grows (constant fan-in in RigL: Lasby et
    al. 2023).

    Candidates are drawn at every rewiring. Each is followed as a weight of zero until the next one: its influence is
    carried on with the network's own D, and its gradients are summed (`algorithms/probes.py`). So it works online, in
    memory of the order of the candidates.

    Args:
        every: updates between two rewirings.
        share: of the entries that are exchanged at each.
        end: as for all rules.
        pool: candidates for every entry that is exchanged.
        order: the order of SnAp in which candidates are followed; the network itself may learn in any way.
    """

    pool: int = 4
    order: int = 1

    scores = "sampled"
    keeps_fan_in = True

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.positive_integer("pool", self.pool)
        arguments.positive_integer("order", self.order)

    def candidates(self, pattern: Pattern, gates: int, draw: np.random.Generator) -> Pattern:
        """Random absent entries of a matrix, as many in every gate as `pool` and `share` say; none of a full one."""
        size = pattern.shape[0] * pattern.shape[1] // gates
        chosen = [np.zeros(0, np.int64)]
        for gate, exists in enumerate(_by_gate(pattern, gates)):
            absent = np.flatnonzero(~exists)
            count = min(self.pool * math.ceil(self.share * np.count_nonzero(exists)), len(absent))
            chosen.append(gate * size + draw.choice(absent, count, replace=False, shuffle=False))
        flat = np.concatenate(chosen)
        return Pattern(flat // pattern.shape[1], flat % pattern.shape[1], pattern.shape)


def _by_gate(pattern: Pattern, gates: int) -> NDArray[np.bool_]:
    """[gates, size of one]: where entries exist."""
    return pattern.mask().reshape(gates, -1)


def _first(
    positions: NDArray[np.int64], keys: NDArray[Any], line: NDArray[np.int64], needed: NDArray[np.int64]
) -> NDArray[np.int64]:
    """In every line, as many positions as are needed, or all there are: those with the smallest keys."""
    if len(needed) == 1 and needed[0] < len(positions):  # sorting all of them would take longer than all the rest
        near = np.flatnonzero(keys <= np.partition(keys, needed[0])[needed[0]])
        positions, keys = positions[near], keys[near]
    order = np.lexsort((keys, line[positions]))
    lines = line[positions[order]]
    rank = np.arange(len(order)) - np.searchsorted(lines, lines)
    return positions[order[rank < needed[lines]]]
