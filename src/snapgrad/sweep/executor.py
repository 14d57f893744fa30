"""What carries out runs: on this machine (local.py) or on a Ray cluster (cluster.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from snapgrad.runs.disk import Record
from snapgrad.runs.options import Options
from snapgrad.sweep.results import Result

ENDED = (0, 1)  # exit codes of a run that has an outcome: finished, diverged


class Job(Protocol):
    """A run that is being trained."""

    @property
    def directory(self) -> Path: ...

    def code(self) -> int | None:
        """The exit code of its process, negative where that was killed; None while it runs."""

    def message(self) -> str:
        """Why it failed, in a line."""

    def record(self) -> Record | None:
        """The newest record of its metrics that is known here."""

    def result(self) -> Result:
        """What came out, of a run that has ended."""


class Executor(Protocol):
    """Trains runs side by side."""

    @property
    def running(self) -> Sequence[Job]: ...

    @property
    def free(self) -> bool:
        """Whether one more can start."""

    def start(self, directory: Path, options: Options) -> None:
        """Begins the run in that directory, or goes on with what is there."""

    def ended(self) -> Sequence[Job]:
        """The jobs that have come to an end since the last call."""

    def stop(self) -> None:
        """Asks all of them to stop at the end of their slice, and waits until they have."""
