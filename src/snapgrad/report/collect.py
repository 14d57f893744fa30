"""Runs gathered into series: those that differ in nothing but their seed are one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from snapgrad.report.mean import Curve, mean
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.disk import Record
from snapgrad.runs.label import label
from snapgrad.runs.options import Options

MAY_DIFFER = ("seed", "log_every", "checkpoint_every", "tensorboard", "validate_every", "data_dir")  # in a series
IN_LABEL = ("algorithm", "order", "update_every", "rewire", "prune")  # what `label` says


class Run(NamedTuple):
    """One run as it was recorded."""

    path: Path
    options: Options
    records: list[Record]
    about: Record
    status: str  # "finished", or what there is to say about it

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, seconds and values of the records that have this value."""
        rows = [(r["tokens"], r["seconds"], r[name]) for r in self.records if r.get(name) is not None]
        return tuple(np.array(rows, float).reshape(-1, 3).T)  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Series:
    """Runs that differ only in their seed."""

    name: str  # what tells it from the others, for legends and tables
    runs: tuple[Run, ...]

    @property
    def options(self) -> Options:
        """Those of its first run."""
        return self.runs[0].options

    def finals(self, metric: str) -> np.ndarray:
        """The metric at the end of every run; of noisy training costs the mean of the last tenth."""
        values = [run.column(metric)[2] for run in self.runs]
        last = [max(1, len(v) // 10) if metric in ("bits", "error") else 1 for v in values]
        return np.array([v[-n:].mean() for v, n in zip(values, last, strict=True)])

    def curve(self, metric: str, against: str) -> Curve:
        """The metric against "tokens" or "seconds"."""
        columns = [run.column(metric) for run in self.runs]
        return mean([(column[0 if against == "tokens" else 1], column[2]) for column in columns], metric)

    def mean_of(self, name: str) -> float:
        """Mean over the runs of a value of their last record."""
        return float(np.mean([run.records[-1][name] for run in self.runs]))


class Collected(NamedTuple):
    """What a report is about."""

    series: list[Series]  # the best first
    metric: str  # what they are judged by
    left_out: list[str]  # runs without records, or with a seed that another has

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for one in self.series for run in one.runs]


def collect(paths: Sequence[Path]) -> Collected:
    """All runs below these paths. They must be of one task."""
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"`runs` must be directories of runs, or folders of them, got {str(path)!r}")
    found = sorted({config.parent.resolve() for path in paths for config in path.rglob("config.toml")})
    if not found:
        raise ValueError(
            f"`runs` must be directories of runs, or folders of them, got {', '.join(map(str, paths)) or 'none'}"
        )
    loaded = [load(path) for path in found]
    runs = [run for run in loaded if run.records]
    if not runs:
        raise ValueError(f"`runs` must have records, got {len(loaded)} without any")
    if len({run.options.task for run in runs}) > 1:
        names = " and ".join(sorted({run.options.task for run in runs}))
        raise ValueError(f"`runs` must be of one task, got {names} together")
    kinds: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        fields = dataclasses.asdict(run.options)
        kinds.setdefault(tuple(v for name, v in fields.items() if name not in MAY_DIFFER), []).append(run)
    metrics = [
        name for name in ("level", "valid_bits", "bits", "error") if all(len(run.column(name)[0]) for run in runs)
    ]
    if not metrics:
        raise ValueError(
            "`runs` must all have a level, bits or an error in their records, got some in which nothing was asked"
        )
    metric = metrics[0]
    more = [name for name in differing(runs) if name not in (*MAY_DIFFER, *IN_LABEL)]
    left_out = [f"{run.path} ({run.status}, no records)" for run in loaded if not run.records]
    series = []
    for alike in kinds.values():
        chosen, again = _one_of_each_seed(alike)
        series.append(Series(_name(chosen[0].options, more), chosen))
        left_out += again
    sign = 1 if metric == "level" else -1
    series.sort(key=lambda one: sign * one.finals(metric).mean(), reverse=True)
    return Collected(series, metric, left_out)


def load(path: Path) -> Run:
    """Reads a run, finished or not."""
    directory = RunDirectory.open(path)
    outcome = directory.outcome()
    # Of a warning, what stands before its colon.
    status = "not finished" if outcome is None else str(outcome.get("warning", outcome["status"])).partition(":")[0]
    return Run(directory.path, directory.options(), directory.metrics(), directory.about(), status)


def differing(runs: Sequence[Run]) -> list[str]:
    """The options that are not the same in all runs."""
    fields = [dataclasses.asdict(run.options) for run in runs]
    return [name for name in fields[0] if len({str(one[name]) for one in fields}) > 1]


def _name(options: Options, more: Sequence[str]) -> str:
    """The label, and what else tells this series from others."""
    words = [label(options)]
    for name in more:
        value, spoken = getattr(options, name), name.replace("_", " ")
        if isinstance(value, bool):
            words += [spoken] if value else []
        elif value is not None:
            words.append(Path(value).name if name == "corpus" else f"{spoken} {value}")
    return ", ".join(words)


def _one_of_each_seed(runs: Sequence[Run]) -> tuple[tuple[Run, ...], list[str]]:
    """A run that was repeated with its seed says nothing new: the longest of them counts."""
    by_seed: dict[int, Run] = {}
    again = []
    for run in sorted(runs, key=lambda run: -run.records[-1]["tokens"]):
        if by_seed.setdefault(run.options.seed, run) is not run:
            again.append(f"{run.path} (seed {run.options.seed} again)")
    return tuple(by_seed.values()), again
