"""An experiment: a TOML file that names networks, methods and claims, and lists the runs of each size.

    [networks]        options of each network, by the name that figures give it
    [methods]         options of each method
    [[claims]]        what the paper says, in a form that results can be held against (reproduction/claims.py)
    [small]           a size: options that all its runs share, and
    [[small.runs]]    networks x methods x every option that has a list of values x seeds

With `select = "learning_rate"` all its values are tried on the first seed, and the best of them on the other seeds.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from snapgrad.arguments import did_you_mean
from snapgrad.runs.options import TASKS, Options
from snapgrad.runs.resolve import resolved
from snapgrad.sweep.study import Choice, Planned, Series, Study, name_of

Size = Literal["smoke", "small", "paper"]
SIZES: tuple[Size, ...] = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Claim:
    """What the paper says, or what we ask: these methods are better than those, on these networks."""

    words: str
    better: tuple[str, ...]
    than: tuple[str, ...]
    pairwise: bool = False  # the first than the first, the second than the second; otherwise each than each
    or_equal: bool = False  # at least as good is enough
    within: float = 0.0  # how far behind still counts as equal, beside the spread
    at_most: float = float("inf")  # how far ahead
    after: Literal["tokens", "seconds"] = "tokens"  # as many of which both have had when they are compared
    networks: tuple[str, ...] = ()  # all of them, if none is named
    question: bool = False  # one of our own, that is answered and not reproduced
    source: str = ""  # where the paper says it, if not where the experiment is from
    comment: str = ""  # what we make of it


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    name: str
    content: dict[str, Any]

    @property
    def title(self) -> str:
        return str(self.content["title"])

    @property
    def source(self) -> str:
        """Where it stands in the paper."""
        return str(self.content["source"])

    @property
    def kind(self) -> str:
        """What it is made of: "runs", or "costs", which has code of its own."""
        return str(self.content.get("kind", "runs"))

    @property
    def metric(self) -> str:
        """What runs are judged by: "level" (more is better) or "valid_bits" (less is)."""
        return "level" if self.content["task"] == "copy" else "valid_bits"

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        def made(values: dict[str, Any]) -> Claim:
            tuples: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
            return Claim(**tuples)

        return tuple(made(values) for values in self.content.get("claims", []))

    def study(self, size: Size) -> Study:
        """Its runs at a size."""
        claims = (claim for claim in self.claims if not claim.question)
        claimed = {
            (network, method)
            for claim in claims
            for network in claim.networks or self.content["networks"]
            for method in (*claim.better, *claim.than)
        }
        alone = bool(self.settings(size).get("alone"))
        return Study(f"{self.name}-{size}", self.choices(size), self.metric, frozenset(claimed), alone)

    def settings(self, size: Size) -> dict[str, Any]:
        """What a size says beside its runs: "seeds", "alone", "scaled" and the options that all its runs share."""
        return {name: value for name, value in self.content[size].items() if name != "runs"}

    def choices(self, size: Size) -> tuple[Choice, ...]:
        """Everything that the size asks for, in the order of the file."""
        return tuple(choice for entry in self.content[size]["runs"] for choice in self._of_entry(size, entry))

    def _of_entry(self, size: Size, entry: dict[str, Any]) -> Iterator[Choice]:
        common = {**self.settings(size), **entry}
        select, seeds = common.pop("select", None), common.pop("seeds")
        networks, methods = common.pop("networks"), common.pop("methods")
        common.pop("alone", None)
        common.pop("scaled", None)
        varied = {name: value for name, value in common.items() if isinstance(value, list) and name != select}
        fixed = {name: value for name, value in common.items() if not isinstance(value, list)}
        tried = common[select] if select else [None]
        for network, method, *values in itertools.product(networks, methods, *varied.values()):
            axes = tuple(zip(varied, values, strict=True))

            def series(value: Any, network: str = network, method: str = method, axes: Any = axes) -> Series:
                own = (*axes, (select, value)) if select else axes
                # A method may set what the others share: its own word counts.
                given = {
                    **fixed, **dict(own), **self._options("networks", network), **self._options("methods", method)
                }  # fmt: skip
                options = (self._run({**given, "seed": seed}) for seed in range(seeds))
                runs = (Planned(name_of(network, method, own, one.seed), network, method, one) for one in options)
                return Series(network, method, own, tuple(runs))

            yield Choice(select, tuple(series(value) for value in tried))

    def _options(self, kind: str, name: str) -> dict[str, Any]:
        if name not in self.content[kind]:
            raise ValueError(f"`{kind}` of {self.name}.toml must have {name!r}, got {', '.join(self.content[kind])}")
        return dict(self.content[kind][name])

    def _run(self, values: dict[str, Any]) -> Options:
        task = TASKS[self.content["task"]]
        known = [field.name for field in dataclasses.fields(task)]
        for name in values.keys() - set(known):
            hint = did_you_mean(name, known)
            raise ValueError(f"{name!r} in {self.name}.toml is not an option of `train {task.task}`{hint}")
        return resolved(task(**values))


def names() -> list[str]:
    """The experiments that come with the package."""
    found = (Path(str(entry)) for entry in files("snapgrad").joinpath("experiments").iterdir())
    return sorted(path.stem for path in found if path.suffix == ".toml")


def load(name: str) -> Experiment:
    """One of them."""
    if name not in names():
        raise ValueError(f"`name` must be one of {', '.join(names())} or all, got {name!r}")
    text = files("snapgrad").joinpath("experiments", f"{name}.toml").read_text(encoding="utf-8")
    return Experiment(name, tomllib.loads(text))
