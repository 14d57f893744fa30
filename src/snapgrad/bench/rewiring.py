"""What rewiring costs: runs with a rewiring every 1000 updates against one whose patterns stay."""

from __future__ import annotations

import statistics
from typing import Any

import jax
import optax

import snapgrad as sg
from snapgrad.bench.timing import medians
from snapgrad.plasticity import Rule
from snapgrad.readouts import Readout
from snapgrad.tasks.copy import Copy
from snapgrad.train import Trainer

UNITS, SPARSITY, BATCH, EVERY = 512, 0.984375, 16, 1000
RULES: dict[str, Rule | None] = {
    "fixed": None,
    "SET": sg.rewiring.SET(every=EVERY),
    "Probe": sg.rewiring.Probe(every=EVERY),
}


class Interval:
    """A run in intervals of so many updates, from one rewiring to the next; compilations count if there are any."""

    def __init__(self, rule: Rule | None):
        task = Copy()
        cell, readout = sg.GRU(task.inputs, UNITS), Readout(task.classes)
        params = sg.Params(cell.init(jax.random.key(0), sparsity=SPARSITY), readout.init(jax.random.key(1), UNITS))
        self._trainer = Trainer(sg.snap(cell, readout.loss, order=2), task, optax.adam(1e-3), BATCH, 1, rule)
        self._carry = self._trainer.start(params, jax.random.key(2))
        self.changes: list[float] = []  # seconds of the rewirings alone

    def __call__(self, times: int) -> None:
        for _ in range(times):
            self._carry, progress = self._trainer.run(self._carry, EVERY * BATCH)
            self.changes.append(progress.rewiring_seconds)


def overhead(rounds: int) -> list[dict[str, Any]]:
    """The time of an update on average over an interval, against that of a run without rewiring."""
    programs = {name: Interval(rule) for name, rule in RULES.items()}
    seconds = medians(programs, rounds)
    return [
        {
            "kind": "rewiring",
            "rule": name,
            "rewired_ms": 1e3 * seconds[name] / EVERY,
            "fixed_ms": 1e3 * seconds["fixed"] / EVERY,
            "over_fixed": seconds[name] / seconds["fixed"],
            "change_ms": 1e3 * statistics.median(program.changes[1:]),
        }
        for name, program in programs.items()
        if name != "fixed"
    ]
