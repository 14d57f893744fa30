"""Carries out studies: skips what has results, resumes what was broken off, collects what ends.

Nothing is kept in memory that matters. What is to be done follows from the results on disk and the study's files,
and a run's own directory holds how far it is, so a sweep may be killed at any moment and started again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapgrad import machine
from snapgrad.runs import disk
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.signals import stop_requests
from snapgrad.runs.training import Interrupted
from snapgrad.sweep import estimate
from snapgrad.sweep.executor import ENDED, Executor, Job
from snapgrad.sweep.results import Result, Results, asked, held_by_one, is_of_results, missing, path_of, read, write
from snapgrad.sweep.study import Planned, Study
from snapgrad.sweep.view import View

LOOK_EVERY = 0.5  # seconds
STOPPED = (130, 143)
ATTEMPTS = 4  # at a run whose process is killed


@dataclass(frozen=True)
class Sweep:
    """Studies, with where their runs and their results go."""

    studies: Sequence[Study]
    results: Path
    runs: Path

    def missing(self) -> list[tuple[Study, Planned]]:
        """What can be started now: first what claims hang on, then first seeds, of these the longest."""
        found: dict[Any, tuple[Study, Planned]] = {}
        for study in self.studies:
            for run in missing(study, self.collected(study)):
                # One that several studies ask for is trained once, for one of those whose claims hang on it.
                if run.identity not in found or study.is_claimed(run):
                    found[run.identity] = study, run

        def rank(pair: tuple[Study, Planned]) -> tuple[bool, int, float]:
            study, run = pair
            return not study.is_claimed(run), run.options.seed, -estimate.seconds(run.options)

        return sorted(found.values(), key=rank)

    def collected(self, study: Study) -> Results:
        """The results so far, with those that another study has of the same run.

        Where seconds are compared, a run that was trained beside others does not count.
        """
        own = read(path_of(self.results, study.name))
        if study.alone:
            return own
        planned = {run.identity for run in study.planned}
        others: Results = {}
        for path in self.results.glob("*.jsonl"):
            if is_of_results(path):
                others |= read(path)
        return own | {key: result for key, result in others.items() if key in planned - own.keys()}

    def refuse_other_machines(self) -> None:
        """Refuses to add seconds of this machine to those of another one, where they are compared."""
        here = _machine(machine.describe())
        for study in self.studies:
            own = self.collected(study)
            waiting = missing(study, own)
            if not (study.alone and waiting):
                continue
            places = [self.directory(study, run) for run in study.planned if run.identity not in own]
            begun = {place: RunDirectory.open(place).about() for place in places if (place / "about.json").is_file()}
            measured = {path_of(self.results, study.name): own[run.identity].about for run in study.planned
                        if run.identity in own and _machine(own[run.identity].about) != here}  # fmt: skip
            for path, about in {**measured, **begun}.items():
                if (there := _machine(about)) != here:
                    raise ValueError(
                        f"what {study.name} compares by its seconds must be of one machine, got {there} in {path} and "
                        f"{here} here: delete it, or name other folders for `results` and `runs`"
                    )

    def take_over(self) -> None:
        """Writes down what other studies have trained that these ask for too."""
        for study in self.studies:
            found, path = self.collected(study), path_of(self.results, study.name)
            if found.keys() - read(path).keys():
                write(path, found.values())

    def later(self) -> float:
        """Estimated seconds of the runs that wait for a choice."""
        waiting = {run.identity: run for one in self.studies for run in asked(one, self.collected(one))[1]}
        return sum(estimate.seconds(run.options) for run in waiting.values())

    def progress(self) -> tuple[int, int]:
        """How many runs there are to be, and how many have a result."""
        total, done = set(), set()
        for study in self.studies:
            found = self.collected(study)
            wanted = {run.identity for runs in asked(study, found) for run in runs}
            total |= wanted
            done |= wanted & found.keys()
        return len(total), len(done)

    def directory(self, study: Study, run: Planned) -> Path:
        """Of one run, wherever its process is started."""
        return (self.runs / study.name / run.name).resolve()

    def collect(self, study: Study, result: Result) -> None:
        """Adds the result of a run that has ended."""
        write(path_of(self.results, study.name), {**self.collected(study), result.identity: result}.values())


def _machine(about: dict[str, Any]) -> str:
    """What seconds depend on, of that with which a result was recorded."""
    known = {
        name: about[name] for name in ("processor", "cores", "instructions", "backend", "snapgrad") if about.get(name)
    }
    return ", ".join(f"{name} {value}" for name, value in known.items())


def carry_out(sweep: Sweep, executor: Executor, view: View) -> list[str]:
    """Trains everything that has no result yet. Returns what failed, in a sentence each."""
    failed: dict[Path, str] = {}
    active: dict[Path, tuple[Study, Planned]] = {}
    killed: Counter[Path] = Counter()
    # Runs of a terminal's process group hear of Ctrl-C themselves.
    with only_one(sweep), stop_requests() as stop:
        with _stopped(executor):
            sweep.take_over()
            waiting, later = sweep.missing(), sweep.later()
            while not stop:
                while executor.free and (next_one := _first(waiting, sweep, active, failed)) is not None:
                    directory = sweep.directory(*next_one)
                    try:
                        executor.start(directory, next_one[1].options)
                    except (ValueError, OSError) as error:
                        _fail(view, *next_one, directory, f"error: {disk.sentence(error)}", failed)
                    else:
                        active[directory] = next_one
                hopeful = [pair for pair in waiting if sweep.directory(*pair) not in failed]
                view.show(hopeful, later, [(job, *active[job.directory]) for job in executor.running])
                ended = executor.ended()
                for job in ended:
                    _take(sweep, view, job, *active.pop(job.directory), failed, killed)
                if ended:
                    sweep.take_over()
                    waiting, later = sweep.missing(), sweep.later()
                elif not executor.running:
                    break
                else:
                    time.sleep(LOOK_EVERY)
            if stop:
                view.say("stopping; each run is written down first")
        for job in executor.ended():
            if job.code() in ENDED:  # else it was stopped
                _take(sweep, view, job, *active.pop(job.directory), failed, killed)
    if stop:
        raise Interrupted("stopped; to go on, start it again in the same way", stop[0])
    return list(failed.values())


@contextmanager
def _stopped(executor: Executor) -> Iterator[None]:
    """Stops it in the end, also where something goes wrong here, such as a full disk: no run is left behind."""
    try:
        yield
    finally:
        executor.stop()


@contextmanager
def only_one(sweep: Sweep) -> Iterator[None]:
    """Refuses a second process for the same results: each would write down its own, and lose those of the other."""
    sweep.results.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        for study in sweep.studies:
            held.enter_context(held_by_one(sweep.results, study.name))
        yield


def _first(
    waiting: Sequence[tuple[Study, Planned]], sweep: Sweep, active: dict[Path, Any], failed: dict[Path, str]
) -> tuple[Study, Planned] | None:
    # A run that two studies ask for may be another's by now than of that for which it was started.
    trained = {run.identity for _, run in active.values()}
    ready = (pair for pair in waiting if sweep.directory(*pair) not in failed and pair[1].identity not in trained)
    return next(ready, None)


def _take(
    sweep: Sweep,
    view: View,
    job: Job,
    study: Study,
    run: Planned,
    failed: dict[Path, str],
    killed: Counter[Path],
) -> None:
    code, message = job.code(), job.message()
    assert code is not None
    killed[job.directory] += code < 0
    if code in ENDED:
        try:
            result = job.result()
        except (ValueError, OSError) as error:  # Python's own code for an error before the run began is that of an end
            _fail(view, study, run, job.directory, message or f"error: {disk.sentence(error)}", failed)
            return
        sweep.collect(study, result)
        view.ended(study, run, result)
    elif code < 0 and killed[job.directory] < ATTEMPTS:
        view.say(f"{study.name}: {run.name}: the process that trained it was killed; it is started again")
    elif code not in STOPPED:
        _fail(view, study, run, job.directory, message or f"exit code {code}", failed)


def _fail(view: View, study: Study, run: Planned, directory: Path, why: str, failed: dict[Path, str]) -> None:
    failed[directory] = f"{study.name}, {run.name}: {why}"
    view.say(failed[directory])
