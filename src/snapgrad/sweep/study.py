"""What a sweep carries out: planned runs, and what is chosen among them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from snapgrad.runs.options import Options

# What a run may differ in and still be the same run: nothing of it changes what is learnt.
INDIFFERENT = ("log_every", "checkpoint_every", "tensorboard", "validate_every", "data_dir", "backend")


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    name: str  # of its directory
    network: str
    method: str
    options: Options

    @property
    def identity(self) -> tuple[Any, ...]:
        """What it has in common with a result of the same run."""
        return identity(dataclasses.asdict(self.options), self.options)


@dataclass(frozen=True)
class Series:
    """The runs of one network, method and value of each axis; they differ in their seed."""

    network: str
    method: str
    axes: tuple[tuple[str, Any], ...]  # the options that are varied, with their values here
    runs: tuple[Planned, ...]


@dataclass(frozen=True)
class Choice:
    """Series of which the best one is wanted: they differ in the selected option alone."""

    option: str | None  # None: there is one series, and nothing to choose
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Study:
    """Runs that belong together: an experiment at one size, or a folder of configs."""

    name: str  # of its results and of the folder of its runs
    choices: tuple[Choice, ...]
    metric: str  # what choices are made by
    claimed: frozenset[tuple[str, str]] = frozenset()  # networks with methods that a claim of the paper speaks of
    alone: bool = False  # whether seconds are compared: one run at a time, with nothing beside it

    @property
    def planned(self) -> list[Planned]:
        """All runs that may be asked for, chosen or not."""
        return [run for choice in self.choices for series in choice.series for run in series.runs]

    def is_claimed(self, run: Planned) -> bool:
        """Whether a claim of the paper speaks of this run's method on its network."""
        return (run.network, run.method) in self.claimed


def identity(values: dict[str, Any], like: Options) -> tuple[Any, ...]:
    """The options of a run as a key; those that a result does not name yet had their default then."""
    default = type(like)()
    names = [field.name for field in dataclasses.fields(like) if field.name not in INDIFFERENT]
    return (like.task, *(values.get(name, getattr(default, name)) for name in names))


def name_of(network: str, method: str, axes: tuple[tuple[str, Any], ...], seed: int) -> str:
    """A name for a run's directory, such as "gru-512--snap-2-online--learning-rate-0.001--seed-0"."""
    parts = [network, method, *(f"{name} {_short(value)}" for name, value in axes), f"seed {seed}"]
    return "--".join(_slug(part) for part in parts)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _slug(text: str) -> str:
    kept = "".join(letter if letter.isalnum() or letter in ".-" else " " for letter in text.lower())
    return "-".join(kept.split())
