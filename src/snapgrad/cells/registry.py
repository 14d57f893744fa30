"""The cells by name: the one place where a string stands for a cell."""

from __future__ import annotations

from collections.abc import Callable

from snapgrad.cells.gru import GRU
from snapgrad.cells.lstm import LSTM
from snapgrad.cells.stack import Stack, stack
from snapgrad.cells.unit import UnitCell
from snapgrad.cells.vanilla import Vanilla

CELLS: dict[str, Callable[..., UnitCell]] = {"vanilla": Vanilla, "gru": GRU, "lstm": LSTM}


def layered(name: str, inputs: int, units: int, layers: int) -> UnitCell | Stack:
    """The cell of that name, or a stack of so many of them."""
    cells = [CELLS[name](units if layer else inputs, units) for layer in range(layers)]
    return stack(*cells) if layers > 1 else cells[0]
