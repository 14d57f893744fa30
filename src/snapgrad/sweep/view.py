"""One view of a whole sweep: a bar for every run that is being trained and one for all, with the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from snapgrad.runs.progress import brief
from snapgrad.sweep import estimate
from snapgrad.sweep.executor import Job
from snapgrad.sweep.results import Result
from snapgrad.sweep.study import Planned, Study


class View:
    """On a terminal, bars; elsewhere a line for every run that ends."""

    def __init__(self, total: int, done: int):
        console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[now]}"),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._total, self._done = total, done
        self._bars: dict[Path, TaskID] = {}
        self._begun, self._worked = time.monotonic(), 0.0  # estimated seconds of what has ended here
        self._first: dict[Any, float] = {}  # by run: the share of it that was there when it was first seen

    def __enter__(self) -> View:
        self._progress.start()
        self._all = self._progress.add_task(f"{self._total} runs", total=self._total, now="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        """A line above the bars."""
        self._progress.console.print(sentence, markup=False, soft_wrap=True)

    def show(
        self,
        waiting: Sequence[tuple[Study, Planned]],
        later: float,
        running: Sequence[tuple[Job, Study, Planned]],
    ) -> None:
        """Where everything stands; `later` are estimated seconds of runs that wait for a choice."""
        if self._progress.disable:
            return
        for path in self._bars.keys() - {job.directory for job, _, _ in running}:
            self._progress.remove_task(self._bars.pop(path))
        trained, worked = 0.0, self._worked
        for job, study, run in running:
            if job.directory not in self._bars:
                title = f"{study.name}: {run.name}"
                self._bars[job.directory] = self._progress.add_task(title, total=run.options.tokens, now="starting")
            if (record := job.record()) is not None:
                tokens = min(record["tokens"], run.options.tokens)
                self._progress.update(self._bars[job.directory], completed=tokens, now=brief(record))
                share, cost = tokens / run.options.tokens, estimate.seconds(run.options)
                trained += share * cost
                worked += (share - self._first.setdefault(run.identity, share)) * cost
        ahead = sum(estimate.seconds(run.options) for _, run in waiting) - trained + later
        passed = time.monotonic() - self._begun  # for as many estimated seconds of work as `worked`
        left = f"about {_duration(ahead * passed / worked)} left" if worked > 0 else ""
        self._progress.update(self._all, completed=self._done, now=left)

    def ended(self, study: Study, run: Planned, result: Result) -> None:
        """One more."""
        self._done += 1
        self._worked += (1 - self._first.pop(run.identity, 0.0)) * estimate.seconds(run.options)
        finished = {"tokens_per_second": result.tokens_per_second, **result.final}
        outcome = brief(finished) if result.status == "finished" else result.status
        self.say(f"{self._done}/{self._total}  {study.name}: {run.name}: {outcome}")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
