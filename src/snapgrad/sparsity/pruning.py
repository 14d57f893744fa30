"""Gradual magnitude pruning (Zhu and Gupta 2017): a network loses its smallest weights until few are left.

    s_t = s_f (1 - (1 - (t - t_0) / (n dt))^3)          t = t_0, t_0 + dt, ..., t_0 + n dt

What is pruned stays so. Weights that are gone are masked at first; the storage is packed when that makes it faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapgrad import arguments
from snapgrad.sparsity.matrix import SparseMatrix


@dataclass(frozen=True)
class Magnitude:
    """Prunes every gate of every weight matrix of the cell to the same sparsity, on the cubic schedule.

    Args:
        sparsity: the final share of weights that are gone, s_f.
        end: the update at which it is reached, t_0 + n dt.
        begin: the update of the first pruning, t_0, at which the schedule still says 0.
        every: updates between two prunings, dt; `end - begin` is a multiple of it.
        inputs: whether input weights are pruned as well (a matrix named `input`).
    """

    sparsity: float
    end: int
    begin: int = 0
    every: int = 1000
    inputs: bool = True

    def __post_init__(self) -> None:
        arguments.sparsity(self.sparsity)
        arguments.positive_integer("every", self.every)
        arguments.positive_integer("end", self.end)
        if not 0 <= self.begin < self.end:
            raise ValueError(f"`begin` must be in [0, end), which is {self.end}, got {self.begin}")
        if (self.end - self.begin) % self.every:
            raise ValueError(
                f"`end` must be a multiple of `every`, {self.every}, updates after `begin`, {self.begin}, "
                f"got {self.end}"
            )

    def is_due(self, update: int) -> bool:
        """Whether weights are pruned after that many updates."""
        return self.begin < update <= self.end and (update - self.begin) % self.every == 0

    def sparsity_at(self, update: int) -> float:
        """The sparsity that the schedule asks for after that many updates."""
        progress = min(max((update - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return self.sparsity * (1 - (1 - progress) ** 3)

    def prune(self, matrix: SparseMatrix, active: NDArray[np.bool_], gates: int, update: int) -> NDArray[np.bool_]:
        """Which of the stored entries stay, out of those that are active: in every gate the largest."""
        size = matrix.shape[0] * matrix.shape[1] // gates
        wanted = max(1, round((1 - self.sparsity_at(update)) * size))
        values, of_gate = np.abs(np.asarray(matrix.values)), matrix.pattern.flat // size
        stays = np.zeros(matrix.pattern.nnz, bool)
        for gate in range(gates):
            own = np.flatnonzero(active & (of_gate == gate))
            stays[own[np.argsort(-values[own], kind="stable")[:wanted]]] = True
        return stays
