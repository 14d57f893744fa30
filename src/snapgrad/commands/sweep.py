"""`snapgrad sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from snapgrad import arguments, machine
from snapgrad.sweep import folder, results
from snapgrad.sweep.cluster import RayExecutor
from snapgrad.sweep.executor import Executor
from snapgrad.sweep.local import LocalExecutor
from snapgrad.sweep.runner import Sweep, carry_out, only_one
from snapgrad.sweep.study import Study
from snapgrad.sweep.view import View

RayAddress = Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[ADDRESS]")]


@dataclass(frozen=True)
class SweepFolder:
    """Train a network for every TOML file of a folder: what has no result yet, side by side.

    Started again, it skips what has ended and goes on with what was broken off.
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """A folder of files as `snapgrad train --config` takes them, each with its `task`."""

    jobs: int | None = None
    """Runs at once; by default one a core."""

    ray: RayAddress = None
    """Train on the Ray cluster at HOST:PORT that this machine is part of; without an address, on a new one here."""

    runs: Path = Path("runs")
    """Where runs are trained, in a folder of this one's name; their results are beside it, a line for every run."""

    def run(self) -> None:
        """Trains, and says where the results are."""
        check_arguments(self.jobs, self.ray)
        study = folder.study(self.folder)
        failed = train([study], self.jobs, self.ray, self.runs, self.runs)
        print(results.path_of(self.runs, study.name))
        refuse_failed(failed)


def check_arguments(jobs: int | None, ray: tuple[str, ...] | None) -> None:
    """Refuses what no executor can be made of."""
    if jobs is not None:
        arguments.positive_integer("jobs", jobs)
    if ray is not None and (len(ray) > 1 or any("://" in address for address in ray)):
        raise ValueError(f"`ray` must be one address, HOST:PORT, or none for a new cluster here, got {' '.join(ray)!r}")


def train(
    studies: list[Study], jobs: int | None, ray: tuple[str, ...] | None, results_in: Path, runs_in: Path
) -> list[str]:
    """Trains what these studies have no result of yet, on this machine or on a cluster. Returns what failed."""
    sweep = Sweep(studies, results_in, runs_in)
    sweep.refuse_other_machines()
    with only_one(sweep):
        sweep.take_over()
    total, done = sweep.progress()
    waiting = len(sweep.missing())
    names = ", ".join(study.name for study in studies)
    console = Console(stderr=True, highlight=False)
    if not waiting:
        console.print(f"{names}: {total} runs, all of them with results")
        return []
    executor: Executor
    if ray is None:
        executor = LocalExecutor(jobs or len(machine.cores()))
        at_once = f"{executor.jobs} at once"
    else:
        executor = RayExecutor(ray[0] if ray else None, jobs)
        at_once = f"on {executor.described}"
    console.print(f"{names}: {total} runs, {waiting} can start now, {at_once}")
    with View(total, done) as view:
        return carry_out(sweep, executor, view)


def refuse_failed(failed: list[str]) -> None:
    """Ends the command with what failed."""
    if failed:
        raise ValueError(f"{len(failed)} run(s) failed: {'; '.join(failed)}")
