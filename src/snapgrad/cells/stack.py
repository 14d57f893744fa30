"""Layers of unit-wise cells: each reads the h of the one below, of the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from snapgrad import arguments
from snapgrad.cells.base import Cell, Jacobians
from snapgrad.cells.stack_jacobians import StackJacobians
from snapgrad.cells.unit import UnitCell, UnitParams
from snapgrad.sparsity.pattern import Pattern

StackParams = tuple[UnitParams, ...]  # one a layer
StackState = tuple[jax.Array, ...]  # [S, units] a layer


def stack(*cells: UnitCell) -> Stack:
    """A cell of several layers, the first of which reads the input and the last of which is what the readout sees.

    s_t[l] = cell_l(s_tm1[l], x_t[l])        x_t[0] = x_t        x_t[l] = h_t[l-1], of the same step

    Parameters and state are tuples, one entry a layer. A parameter touches the units of its own layer and, at once,
    those that read them in the layers above, so that I and J are denser than those of the layers apart.
    """
    return Stack(cells)


@dataclass(frozen=True, repr=False)
class Stack(Cell):
    """Unit-wise cells on top of each other; made by `sg.stack`."""

    cells: tuple[UnitCell, ...]

    def __post_init__(self) -> None:
        if not self.cells:
            raise ValueError("`cells` must be one unit-wise cell or more, got none")
        for cell in self.cells:
            if not isinstance(cell, UnitCell):
                needed = "unit-wise cells such as sg.GRU(inputs, units)"
                raise TypeError(f"`cells` must be {needed}, got {type(cell).__name__}")
        for layer, (below, above) in enumerate(zip(self.cells, self.cells[1:], strict=False), 1):
            if above.inputs != below.units:
                needed = f"inputs={below.units} in layer {layer}, the units of {below}"
                raise ValueError(f"`cells` must each read the one below, with {needed}, got inputs={above.inputs}")

    @property
    def inputs(self) -> int:  # type: ignore[override]
        return self.cells[0].inputs

    @property
    def gates(self) -> int:  # type: ignore[override]
        """Of every layer; 1 where they differ, so that matrices are taken whole."""
        found = {cell.gates for cell in self.cells}
        return found.pop() if len(found) == 1 else 1

    def init(
        self, key: jax.Array, sparsity: float = 0.0, *, sparse_inputs: bool = True, dtype: Any = None
    ) -> StackParams:
        """Fresh parameters of every layer, as `UnitCell.init` makes them.

        `sparse_inputs` is about the weights that read the input; those between layers are always made sparse.
        """
        arguments.key("key", key)
        keys = jax.random.split(key, len(self.cells))
        return tuple(
            cell.init(layer_key, sparsity, sparse_inputs=sparse_inputs or layer > 0, dtype=dtype)
            for layer, (cell, layer_key) in enumerate(zip(self.cells, keys, strict=True))
        )

    def check(self, params: Any) -> None:
        if not isinstance(params, tuple) or len(params) != len(self.cells):
            got = f"{type(params).__name__} of {len(params)}" if isinstance(params, tuple) else type(params).__name__
            raise TypeError(f"`params.cell` must be a tuple of {len(self.cells)} for {self}, one a layer, got {got}")
        for layer, (cell, own) in enumerate(zip(self.cells, params, strict=True)):
            try:
                cell.check(own)
            except (TypeError, ValueError) as error:
                raise type(error)(str(error).replace("`params.cell", f"`params.cell[{layer}]", 1)) from None

    def __repr__(self) -> str:
        return f"stack({', '.join(map(repr, self.cells))})"

    def initial_state(self) -> StackState:
        return tuple(cell.initial_state() for cell in self.cells)

    def step(self, params: StackParams, s: StackState, x: jax.Array) -> StackState:
        after = []
        for cell, own, s_tm1 in zip(self.cells, params, s, strict=True):
            after.append(cell.step(own, s_tm1, x))
            x = cell.output(after[-1])
        return tuple(after)

    def output(self, s: StackState) -> jax.Array:
        return self.cells[-1].output(s[-1])

    def jacobians(self, params: StackParams, absent: tuple[tuple[Pattern, Pattern], ...] | None = None) -> Jacobians:
        """The derivatives of `step`; with `absent`, I is that of weights which do not exist, layer by layer."""
        return StackJacobians.of(self, tuple((own.recurrent.pattern, own.input.pattern) for own in params), absent)
