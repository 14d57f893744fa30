"""`snapgrad reproduce`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from snapgrad import arguments, machine
from snapgrad.sweep import experiment as experiments
from snapgrad.sweep import results
from snapgrad.sweep.experiment import Experiment
from snapgrad.sweep.local import LocalExecutor
from snapgrad.sweep.runner import Sweep, carry_out
from snapgrad.sweep.view import View


@dataclass(frozen=True)
class Reproduce:
    """Carry out an experiment of the paper: train what has no result yet, then draw its figures and the page.

    Started again, it skips what has ended and goes on with what was broken off.
    """

    name: Annotated[str, tyro.conf.Positional]
    """ablations, copy, costs, influence, lm-dense, lm-sparse, pruning, rewiring, staleness, wide, or all."""

    size: Literal["smoke", "small", "paper"] = "small"
    """smoke: seconds; small: hours on two cores; paper: the paper's own settings, for a big machine."""

    draw: bool = False
    """Only draw, from the results that are there."""

    jobs: int | None = None
    """Runs at once; by default one a core, or one at a time where seconds are compared."""

    results: Path = Path("results")
    """Where results are kept, a line for every run."""

    runs: Path = Path("runs/reproduce")
    """Where runs are trained; they may be deleted when they have ended."""

    out: Path | None = None
    """Where results.md and its figures are written; by default docs/, for other sizes than small beside the runs."""

    def run(self) -> None:
        """Trains, then draws."""
        if self.jobs is not None:
            arguments.positive_integer("jobs", self.jobs)
        chosen = [experiments.load(name) for name in (experiments.names() if self.name == "all" else [self.name])]
        failed = [] if self.draw else self.train(chosen)
        from snapgrad.reproduction import markdown

        out = self.out or (Path("docs") if self.size == "small" else self.runs / self.size)
        everything = [experiments.load(name) for name in experiments.names()]
        for path in markdown.write(everything, self.size, self.results, out):
            print(path)
        if failed:
            raise ValueError(f"{len(failed)} run(s) failed: {'; '.join(failed)}")

    def train(self, chosen: list[Experiment]) -> list[str]:
        """All experiments at once, but those whose seconds are compared one after the other, with nothing beside."""
        from snapgrad.reproduction import costs, influence, measurements

        own = {"costs": costs.measure, "influence": influence.measure}  # those that are not made of runs
        for one in chosen:
            if one.kind in own:
                measurements.carry_out(one, self.size, self.results, own[one.kind])
        chosen = [one for one in chosen if one.kind == "runs"]
        alone = [one for one in chosen if one.settings(self.size).get("jobs") == 1]
        together = [one for one in chosen if one not in alone]
        failed = []
        for group in ([together] if together else []) + [[one] for one in alone]:
            jobs = self.jobs or (1 if group[0] in alone else len(machine.cores()))
            sweep = Sweep(group, self.size, self.results, self.runs)
            total = sum(results.expected(one, self.size) for one in group)
            waiting = len(sweep.missing())  # also takes over what another experiment has trained
            if not waiting:
                continue
            Console(stderr=True, highlight=False).print(
                f"{', '.join(one.name for one in group)}: {total} runs, {waiting} can start now, {jobs} at once"
            )
            done = sum(len(sweep.collected(one)) for one in group)
            with View(total, done) as view:
                failed += carry_out(sweep, LocalExecutor(jobs), view)
        return failed
