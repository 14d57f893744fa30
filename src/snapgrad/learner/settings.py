"""What a learner is made of, by name or given: cell, algorithm, optimiser, loss; and as JSON, for a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from snapgrad import arguments, optimisers
from snapgrad.algorithms import checks
from snapgrad.algorithms.interface import Algorithm, Params
from snapgrad.algorithms.registry import ALGORITHMS, takes
from snapgrad.cells.base import Cell
from snapgrad.cells.registry import CELLS
from snapgrad.cells.stack import Stack
from snapgrad.kernels.adam import Adam
from snapgrad.kernels.select import Backend
from snapgrad.learner.guards import BadValues, Guards, InfluenceGrowth
from snapgrad.learner.objective import Objective
from snapgrad.learner.step import Learning
from snapgrad.learner.update import Update
from snapgrad.readouts import Readout

UNITS = 64
LEARNING_RATE = 3e-3
MOST_CLIP = 1e6  # its square is far from infinite
GIVEN = ("cell", "algorithm", "loss", "optimiser")  # may be objects, which a file cannot hold


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `OnlineLearner`."""

    inputs: int
    outputs: int
    cell: str | Cell
    units: int | None
    sparsity: float
    hidden: tuple[int, ...]
    algorithm: str | Callable[..., Algorithm]
    order: int | None
    loss: str | Callable[[jax.Array, Any], jax.Array]
    optimiser: str | optax.GradientTransformation
    learning_rate: float | None
    clip: float | None
    lanes: int | None
    symbols: bool
    limit: float | None
    bad_values: BadValues
    influence_limit: float
    influence_growth: InfluenceGrowth
    seed: int
    backend: Backend

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs"):
            arguments.positive_integer(name, getattr(self, name))
        if self.lanes is not None:
            arguments.positive_integer("lanes", self.lanes)
        arguments.boolean("symbols", self.symbols)
        arguments.sparsity(self.sparsity)
        arguments.seed(self.seed)
        for field in dataclasses.fields(self):  # NumPy's numbers to Python's, which JSON has
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
        if isinstance(self.hidden, tuple):
            widths = tuple(width.item() if isinstance(width, np.generic) else width for width in self.hidden)
            object.__setattr__(self, "hidden", widths)

    @property
    def batch(self) -> int:
        """Lanes, counted also where there is no axis for them."""
        return 1 if self.lanes is None else self.lanes

    def make_cell(self) -> Cell:
        """The cell, made by its name or as it was given."""
        if isinstance(self.cell, str):
            if self.cell not in CELLS:
                known = ", ".join(f'"{name}"' for name in CELLS)
                raise ValueError(f"`cell` must be one of {known} or a cell such as sg.GRU(4, 64), got {self.cell!r}")
            return CELLS[self.cell](self.inputs, UNITS if self.units is None else self.units)
        checks.cell(self.cell)
        if self.units is not None:
            raise ValueError(f"`units` must not be given with a cell that has its own, {self.cell}, got {self.units!r}")
        if self.cell.inputs != self.inputs:
            raise ValueError(f"`cell` must have inputs={self.inputs} (`inputs`), got {self.cell}")
        return self.cell

    def make_learning(self, cell: Cell) -> Learning:
        """How the network learns."""
        objective = Objective(Readout(self.outputs, self.hidden), self.loss)
        guards = Guards(self.limit, self.bad_values, self.influence_limit, self.influence_growth)
        return Learning(self._algorithm(cell, objective), objective, self._update(), guards)

    def make_params(self, cell: Cell, objective: Objective) -> Params:
        """Fresh parameters."""
        for_cell, for_readout, _ = self._keys()
        h = jax.eval_shape(lambda: cell.output(cell.initial_state()))
        if len(h.shape) != 1:
            raise ValueError(f"`cell` must have a vector as its output, got one of shape {h.shape} from {cell}")
        return Params(cell.init(for_cell, self.sparsity), objective.readout.init(for_readout, h.shape[0]))

    @property
    def key(self) -> jax.Array:
        """What random algorithms draw from."""
        return self._keys()[2]

    def _keys(self) -> jax.Array:
        return jax.random.split(jax.random.key(self.seed), 3)

    def _algorithm(self, cell: Cell, objective: Objective) -> Algorithm:
        if isinstance(self.algorithm, str):
            if self.algorithm not in ALGORITHMS:
                known = ", ".join(f'"{name}"' for name in ALGORITHMS)
                raise ValueError(f"`algorithm` must be one of {known} or a function, got {self.algorithm!r}")
            options: dict[str, Any] = {"backend": self.backend}
            if takes(self.algorithm, "order"):
                options["order"] = self.order
            return ALGORITHMS[self.algorithm](cell, objective, **options)
        if not callable(self.algorithm):
            needed = "a name or a function (cell, loss) -> sg.Algorithm"
            raise TypeError(f"`algorithm` must be {needed}, got {type(self.algorithm).__name__}")
        made = self.algorithm(cell, objective)
        if not isinstance(made, Algorithm):
            raise TypeError(f"`algorithm` must return one such as sg.snap returns, got {type(made).__name__}")
        if made.episodic:
            raise ValueError(f"`algorithm` must go on from sample to sample, got {made.name}, which begins anew")
        return made

    def _update(self) -> Update:
        call = None
        if isinstance(self.optimiser, str):
            arguments.positive_number("learning_rate", self._rate)
            call = optimisers.parse(self.optimiser)
            made = optimisers.make(call, self._rate)
        elif not isinstance(self.optimiser, optax.GradientTransformation):
            got = type(self.optimiser).__name__
            raise TypeError(f"`optimiser` must be a name such as adam, or an optimiser of Optax, got {got}")
        elif self.learning_rate is not None:
            given = arguments.shown(self.learning_rate)
            raise ValueError(f"`learning_rate` must not be given with an optimiser that has its own, got {given}")
        else:
            made = self.optimiser
        if self.clip is not None:
            arguments.positive_number("clip", self.clip)
            made = optax.chain(optax.clip_by_global_norm(self.clip), made)
        # One vector in place of many small arrays: for one sample at a time, calls cost as much as arithmetic.
        if call is not None and call.name in optimisers.ELEMENTWISE:
            made = optax.flatten(made)
        # Whether it makes nothing infinite of a finite gradient: then that need not be checked.
        if call not in optimisers.BOUNDED or self.clip is None or self._rate > 1 or self.clip > MOST_CLIP:
            return Update(made)
        return Update(made, is_bounded=True, adam=Adam(self._rate, self.clip) if call.name == "adam" else None)

    @property
    def _rate(self) -> float:
        return LEARNING_RATE if self.learning_rate is None else self.learning_rate

    # ---- as JSON

    def describe(self) -> dict[str, Any]:
        """The settings as JSON has them; what was given as an object and has no name is None."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in GIVEN:
            if not isinstance(found[name], str):
                found[name] = None
        if isinstance(self.cell, Cell):
            found["cell"] = _describe_cell(self.cell)
        return found

    @classmethod
    def from_description(cls, described: dict[str, Any], given: dict[str, Any]) -> Settings:
        """The settings of a file, with the objects that it could not hold."""
        found = dict(described)
        found["hidden"] = tuple(found["hidden"])
        if isinstance(found["cell"], list):
            found["cell"] = _cell(found["cell"])
        for name in GIVEN:
            if found[name] is None and given.get(name) is None:
                raise ValueError(f"`{name}` must be given to load a learner that was made with an object, got none")
            if found[name] is not None and given.get(name) is not None:
                raise ValueError(
                    f"`{name}` must not be given to load a learner whose file has it, "
                    f"got {arguments.shown(given[name])}"
                )
            if found[name] is None:
                found[name] = given[name]
        return cls(**found)


def _describe_cell(cell: Cell) -> list[Any] | None:
    """The layers of a cell of the library; None for one's own."""
    layers = cell.cells if isinstance(cell, Stack) else (cell,)
    found: list[Any] = []
    for layer in layers:
        for name, make in CELLS.items():
            sizes = getattr(layer, "inputs", 0), getattr(layer, "units", 0), getattr(layer, "recurrent_bias", False)
            if type(layer) is type(make(1, 1)) and make(*sizes[:2], recurrent_bias=sizes[2]) == layer:
                found.append([name, *sizes])
    return found if len(found) == len(layers) else None


def _cell(described: list[Any]) -> Cell:
    cells = [CELLS[name](inputs, units, recurrent_bias=bias) for name, inputs, units, bias in described]
    return Stack(tuple(cells)) if len(cells) > 1 else cells[0]
