"""The results of an experiment as its figures and tables need them: by network, method and axis, seeds together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from snapgrad.report.mean import Curve, mean
from snapgrad.sweep import results
from snapgrad.sweep.experiment import Experiment, Size
from snapgrad.sweep.results import Result, Results


@dataclass(frozen=True)
class Measured:
    """One series of an experiment with the results that it has so far."""

    network: str
    method: str
    axes: dict[str, Any]
    runs: tuple[Result, ...]  # of different seeds
    wanted: int  # how many there are to be
    complete: bool  # whether they are all there, and what was to be tried for a choice

    @property
    def diverged(self) -> int:
        """How many of its runs did."""
        return sum(not _whole(run) for run in self.runs)

    @property
    def tokens(self) -> float:
        """How many its runs were asked to see."""
        return float(min(run.options["tokens"] for run in self.runs))

    @property
    def seconds(self) -> float:
        """How long its runs took: the median of those that did not diverge, whatever disturbed one of them."""
        return float(np.median([run.final["seconds"] for run in self.whole]))

    @property
    def whole(self) -> tuple[Result, ...]:
        """The runs that did not diverge, or all if none is left."""
        return tuple(run for run in self.runs if _whole(run)) or self.runs

    def finals(self, metric: str) -> np.ndarray:
        """How each seed ended; the worst there is for one that diverged."""
        return np.array([run.final.get(metric, _worst(metric)) if _whole(run) else _worst(metric) for run in self.runs])

    def had(self, of: str) -> float:
        """The tokens or seconds that every seed has had which did not diverge."""
        return self.tokens if of == "tokens" else min(run.final["seconds"] for run in self.whole)

    def after(self, metric: str, amount: float, of: str = "tokens") -> np.ndarray:
        """Where each seed was after so many tokens or seconds, at the end if it has had no more than that."""

        def value(run: Result) -> float:
            if not _whole(run):
                return _worst(metric)
            if amount >= (run.options["tokens"] if of == "tokens" else run.final["seconds"]):
                return float(run.final.get(metric, _worst(metric)))
            return _at(run, metric, amount, of)

        return np.array([value(run) for run in self.runs])

    def until(self, level: float) -> float:
        """The seconds until a level was reached, the median of the seeds; infinity for one that has not reached it."""
        waits = []
        for run in self.whole:
            _, seconds, levels = run.column("level")
            reached = np.flatnonzero(levels >= level)
            waits.append(seconds[reached[0]] if len(reached) else np.inf)
        return float(np.median(waits))

    def curve(self, metric: str, against: str = "tokens") -> Curve:
        """Where all seeds have been measured; those that diverged are left out if others did not."""
        columns = [run.column(metric) for run in self.whole]
        if against == "seconds":
            return mean([(seconds, values) for _, seconds, values in columns], metric)
        # A sequence that has begun is ended: seeds see a few tokens more than they are asked to, and end together.
        return mean([(np.minimum(tokens, self.tokens), values) for tokens, _, values in columns], metric)


def _whole(run: Result) -> bool:
    return run.status == "finished"


def _worst(metric: str) -> float:
    return -np.inf if metric == "level" else np.inf


def _at(run: Result, metric: str, place: float, against: str) -> float:
    tokens, seconds, values = run.column(metric)
    if not len(values):
        return _worst(metric)
    x = tokens if against == "tokens" else seconds
    if metric == "level":  # 1 at first, and constant until it grows
        return float(np.concatenate([[1.0], values])[np.searchsorted(x, place, side="right")])
    return float(np.interp(place, x, values, left=np.inf))  # before anything was measured: as bad as can be


def measure(experiment: Experiment, size: Size, found: Results) -> list[Measured]:
    """What an experiment's choices have come to; those without any result yet are left out."""
    shown = []
    for choice in experiment.choices(size):
        tried = tuple(series for series in choice.series if series.runs[0].identity in found)
        if not tried:
            continue
        chosen = results.best(results.Choice(choice.option, tried), found, experiment.metric)
        runs = tuple(found[run.identity] for run in chosen.runs if run.identity in found)
        complete = results.decided(choice, found) and len(runs) == len(chosen.runs)
        shown.append(Measured(chosen.network, chosen.method, dict(chosen.axes), runs, len(chosen.runs), complete))
    return shown
