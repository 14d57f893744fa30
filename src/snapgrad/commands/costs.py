"""`snapgrad costs`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

import jax

from snapgrad import arguments
from snapgrad.cells.registry import layered
from snapgrad.costs import costs
from snapgrad.runs.build import seed_in_range


@dataclass(frozen=True)
class Costs:
    """Count memory and flops of every algorithm for a network, and compare them with the paper's."""

    cell: Literal["vanilla", "gru", "lstm"] = "gru"
    """The recurrent cell."""

    units: int = 128
    """Its units."""

    layers: int = 1
    """So many of these cells on top of each other."""

    inputs: int = 4
    """Width of its input."""

    sparsity: float = 0.75
    """Share of its weights that do not exist."""

    order: int = 2
    """Order of SnAp."""

    rank: int = 1
    """Rank of UORO and OK."""

    batch: int = 16
    """Sequences side by side."""

    window: int = 128
    """Steps that BPTT keeps a history of."""

    seed: int = 0
    """Chooses the weights that exist."""

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Prints the counts."""
        for name in ("units", "layers", "inputs", "order", "rank", "batch", "window"):
            arguments.positive_integer(name, getattr(self, name))
        arguments.sparsity(self.sparsity)
        seed_in_range(self.seed)
        cell = layered(self.cell, self.inputs, self.units, self.layers)
        params = cell.init(jax.random.key(self.seed), sparsity=self.sparsity)
        found = costs(cell, params, order=self.order, rank=self.rank, batch=self.batch, window=self.window)
        if self.json:
            counts = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
            methods = {name: dataclasses.asdict(cost) for name, cost in found.methods.items()}
            ratios = {"sparsity": found.sparsity, "vs_bptt": found.vs_bptt, "vs_rtrl": found.vs_rtrl}
            print(json.dumps({**counts, "cell": str(cell), "methods": methods, **ratios}))
        else:
            print(found)
