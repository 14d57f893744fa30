"""`snapgrad train` and `snapgrad resume`."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from jax.sharding import Mesh

from snapgrad.runs.build import Experiment, build
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.follower import Follower
from snapgrad.runs.label import directory_name, label, network
from snapgrad.runs.options import AddingOptions, CharsOptions, CopyOptions, MackeyGlassOptions, Options
from snapgrad.runs.processes import Devices, is_first, of_the_first
from snapgrad.runs.progress import bar, brief
from snapgrad.runs.resolve import resolved
from snapgrad.runs.training import Diverged, Interrupted, run_training


@dataclass(frozen=True, kw_only=True)
class Given(Devices):
    """What `train` takes beside the options of the run itself."""

    config: Path | None = None
    """A TOML file with some of these options; what the command line says goes before it."""

    out: Path | None = None
    """The run's directory, new or empty; by default a new one under runs/."""

    json: bool = False
    """Print the outcome as JSON."""


@dataclass(frozen=True, kw_only=True)
class TrainCopy(Given):
    """Learn to copy binary strings that get longer as they are mastered (the paper, section 5.2)."""

    run: CopyOptions


@dataclass(frozen=True, kw_only=True)
class TrainChars(Given):
    """Learn to predict the next byte of a text. The defaults are the paper's dense language model (section 5.1)."""

    run: CharsOptions


@dataclass(frozen=True, kw_only=True)
class TrainAdding(Given):
    """Learn to add the two marked numbers of a sequence (Hochreiter & Schmidhuber 1997)."""

    run: AddingOptions


@dataclass(frozen=True, kw_only=True)
class TrainMackeyGlass(Given):
    """Learn to forecast a chaotic series (Mackey & Glass 1977)."""

    run: MackeyGlassOptions


@dataclass(frozen=True)
class Train:
    """Train a network on a task, in a directory of its own that can be resumed and reported on."""

    task: (
        Annotated[TrainCopy, tyro.conf.subcommand("copy", prefix_name=False)]
        | Annotated[TrainChars, tyro.conf.subcommand("chars", prefix_name=False)]
        | Annotated[TrainAdding, tyro.conf.subcommand("adding", prefix_name=False)]
        | Annotated[TrainMackeyGlass, tyro.conf.subcommand("mackey-glass", prefix_name=False)]
    )

    def run(self) -> None:
        """Makes the directory and trains."""
        options, mesh = resolved(self.task.run), self.task.connect()
        experiment = build(options, mesh)  # before anything is written
        path = self.task.out or of_the_first(new_directory(options))
        if is_first():
            run = RunDirectory.create(path, options, experiment.data)
        else:
            run = Follower(path, (options, experiment.data))
        train(run, self.task.json, experiment, mesh)


@dataclass(frozen=True, kw_only=True)
class Resume(Devices):
    """Go on with a run that was interrupted or killed; it ends with the same bits as one that was not."""

    run_directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """The run's directory."""

    json: bool = False
    """Print the outcome as JSON."""

    def run(self) -> None:
        """Trains on from the last checkpoint."""
        mesh = self.connect()
        run = RunDirectory.open(self.run_directory)
        train(run if is_first() else Follower(run.path), self.json, None, mesh)


def train(run: RunDirectory, as_json: bool, experiment: Experiment | None, mesh: Mesh | None) -> None:
    """Trains with a progress bar, and says how it ended; a process that does not write the run says nothing."""
    if not is_first():
        run_training(run, lambda record: None, experiment, mesh)
        return
    options, before = run.options(), run.outcome()
    if before is not None and before["tokens"] >= options.tokens:
        print("this run has ended before; nothing is trained again", file=sys.stderr)
    try:
        with bar(label(options), options.tokens) as show:
            outcome = run_training(run, show, experiment, mesh)
    except (Diverged, Interrupted):
        if as_json:
            records = run.metrics()
            so_far = {"status": "interrupted", **(records[-1] if records else {})}
            print(json.dumps({"run": str(run.path), **(run.outcome() or so_far)}))
        raise
    if "warning" in outcome:
        print(f"warning: {outcome['warning']}", file=sys.stderr)
    if as_json:
        print(json.dumps({"run": str(run.path), **outcome}))
    else:
        print(f"{label(options)} on {options.task}, {network(options)}: {brief(outcome)}")
        print(f"{outcome['tokens']:,} tokens in {outcome['seconds']:.1f} s of training; {run.path}")
        print(f"see it with: snapgrad report {shlex.quote(str(run.path))}")


def new_directory(options: Options) -> Path:
    """The first name under runs/ that is not taken."""
    name, number = Path("runs") / directory_name(options), 1
    while (path := name if number == 1 else name.with_name(f"{name.name}-{number}")).exists():
        number += 1
    return path
