"""Carries out experiments: skips what has results, resumes what was broken off, collects what ends.

Nothing is kept in memory that matters. What is to be done follows from the results on disk and the experiment's file,
and a run's own directory holds how far it is, so a sweep may be killed at any moment and started again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.signals import stop_requests
from snapgrad.runs.training import Interrupted
from snapgrad.sweep import estimate
from snapgrad.sweep.experiment import Experiment, Planned, Size
from snapgrad.sweep.local import Job, LocalExecutor
from snapgrad.sweep.results import Result, Results, missing, of_run, path_of, read, write
from snapgrad.sweep.view import View

LOOK_EVERY = 0.5  # seconds
ENDED = (0, 1)  # exit codes of a run that has an outcome: finished, diverged
STOPPED = (130, 143)


@dataclass(frozen=True)
class Sweep:
    """Experiments of one size, with where their runs and their results go."""

    experiments: Sequence[Experiment]
    size: Size
    results: Path
    runs: Path

    def missing(self) -> list[tuple[Experiment, Planned]]:
        """What can be started now: first what claims hang on, then first seeds, of these the longest."""
        found: dict[Any, tuple[Experiment, Planned]] = {}
        for experiment in self.experiments:
            for run in missing(experiment, self.size, self.collected(experiment)):
                # One that several experiments ask for is trained once, for one of those whose claims hang on it.
                if run.identity not in found or experiment.is_claimed(run):
                    found[run.identity] = experiment, run

        def rank(pair: tuple[Experiment, Planned]) -> tuple[bool, int, float]:
            experiment, run = pair
            return not experiment.is_claimed(run), run.options.seed, -estimate.seconds(run.options)

        return sorted(found.values(), key=rank)

    def collected(self, experiment: Experiment) -> Results:
        """The results so far, with those that another experiment has of the same run.

        Where seconds are compared, a run that was trained beside others does not count.
        """
        own = read(path_of(self.results, experiment, self.size))
        if experiment.settings(self.size).get("jobs") == 1:
            return own
        others: Results = {}
        for path in self.results.glob(f"*-{self.size}.jsonl"):
            others |= read(path)
        planned = {run.identity for c in experiment.choices(self.size) for s in c.series for run in s.runs}
        shared = {key: result for key, result in others.items() if key in planned - own.keys()}
        if shared:
            write(path_of(self.results, experiment, self.size), {**own, **shared}.values())
        return {**own, **shared}

    def directory(self, experiment: Experiment, run: Planned) -> Path:
        """Of one run."""
        return self.runs / f"{experiment.name}-{self.size}" / run.name

    def collect(self, experiment: Experiment, run: Planned) -> Result:
        """Adds the result of a run that has ended."""
        result = of_run(RunDirectory.open(self.directory(experiment, run)))
        path = path_of(self.results, experiment, self.size)
        write(path, {**self.collected(experiment), result.identity: result}.values())
        return result


def carry_out(sweep: Sweep, executor: LocalExecutor, view: View) -> list[str]:
    """Trains everything that has no result yet. Returns what failed, in a sentence each."""
    failed: dict[Path, str] = {}
    active: dict[Path, tuple[Experiment, Planned]] = {}
    with stop_requests() as asked:  # runs of a terminal's process group hear of Ctrl-C themselves
        waiting = sweep.missing()
        while not asked:
            while executor.free and (next_one := _first(waiting, sweep, active, failed)) is not None:
                directory = sweep.directory(*next_one)
                active[directory] = next_one
                executor.start(directory, next_one[1].options)
            view.show(waiting, [(job.directory, active[job.directory]) for job in executor.running])
            ended = executor.ended()
            for job in ended:
                experiment, run = active.pop(job.directory)
                _take(sweep, view, job, experiment, run, failed)
            if ended:
                waiting = sweep.missing()
            elif not executor.running:
                break
            else:
                time.sleep(LOOK_EVERY)
        if asked:
            view.say("stopping; each run is written down first")
            executor.stop()
            raise Interrupted("stopped; to go on, start it again in the same way", asked[0])
    return list(failed.values())


def _first(
    waiting: Sequence[tuple[Experiment, Planned]], sweep: Sweep, active: dict[Path, Any], failed: dict[Path, str]
) -> tuple[Experiment, Planned] | None:
    ready = (pair for pair in waiting if sweep.directory(*pair) not in active.keys() | failed.keys())
    return next(ready, None)


def _take(sweep: Sweep, view: View, job: Job, experiment: Experiment, run: Planned, failed: dict[Path, str]) -> None:
    code, message = job.code(), job.message()
    if code in ENDED:
        view.ended(experiment, run, sweep.collect(experiment, run))
    elif code not in STOPPED:
        failed[job.directory] = f"{experiment.name}, {run.name}: {message or f'exit code {code}'}"
        view.say(failed[job.directory])
