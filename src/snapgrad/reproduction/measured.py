"""The results of an experiment as its figures and tables need them: by network, method and axis, seeds together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from snapgrad.sweep import results
from snapgrad.sweep.experiment import Experiment, Series, Size
from snapgrad.sweep.results import Result, Results

GRID = 120  # points of a mean curve


class Curve(NamedTuple):
    """A metric against tokens or seconds: the mean over the seeds, and their range."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Measured:
    """One series of an experiment with the results that it has so far."""

    network: str
    method: str
    axes: dict[str, Any]
    runs: tuple[Result, ...]  # of different seeds
    wanted: int  # how many there are to be

    @property
    def tokens(self) -> float:
        """How many its runs were asked to see."""
        return float(min(run.options["tokens"] for run in self.runs))

    def finals(self, metric: str, tokens: float = np.inf) -> np.ndarray:
        """How each seed ended, or where it was after so many tokens; the worst there is for one that diverged."""
        worst = 0.0 if metric == "level" else np.inf
        if tokens >= self.tokens:
            return np.array([run.final.get(metric, worst) if run.status == "finished" else worst for run in self.runs])
        return np.array(
            [_at(run, metric, np.array([tokens]))[0] if run.status == "finished" else worst for run in self.runs]
        )

    def curve(self, metric: str, against: str = "tokens") -> Curve:
        """Where all seeds have been measured."""
        xs = [run.column(metric)[0 if against == "tokens" else 1] for run in self.runs]
        grid = np.linspace(max(x[0] for x in xs), min(x[-1] for x in xs), GRID)
        values = [_at(run, metric, grid, against) for run in self.runs]
        return Curve(grid, np.mean(values, axis=0), np.min(values, axis=0), np.max(values, axis=0))


def _at(run: Result, metric: str, places: np.ndarray, against: str = "tokens") -> np.ndarray:
    tokens, seconds, values = run.column(metric)
    x = tokens if against == "tokens" else seconds
    if metric == "level":  # constant until it grows
        return values[np.maximum(np.searchsorted(x, places, side="right") - 1, 0)]
    return np.interp(places, x, values)


def measure(experiment: Experiment, size: Size, found: Results) -> list[Measured]:
    """What an experiment's choices have come to; those without any result yet are left out."""
    shown = []
    for choice in experiment.choices(size):
        tried = [series for series in choice.series if series.runs[0].identity in found]
        if not tried:
            continue
        chosen = tried[0] if len(tried) == 1 else results.best(_restricted(choice, tried), found, experiment.metric)
        runs = tuple(found[run.identity] for run in chosen.runs if run.identity in found)
        shown.append(Measured(chosen.network, chosen.method, dict(chosen.axes), runs, len(chosen.runs)))
    return shown


def _restricted(choice: results.Choice, tried: Sequence[Series]) -> results.Choice:
    return results.Choice(choice.option, tuple(tried))


def spread(values: np.ndarray, digits: int) -> str:
    """Mean and sample standard deviation, as people write them."""
    if len(values) == 1:
        return f"{values[0]:.{0 if digits == 1 else digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"
