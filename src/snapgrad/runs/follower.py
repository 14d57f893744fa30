"""What a process that does not write the run has in place of its directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snapgrad.runs import checkpoint
from snapgrad.runs.checkpoint import Checkpoint, Totals
from snapgrad.runs.directory import RunDirectory, about
from snapgrad.runs.disk import Record
from snapgrad.runs.options import Options
from snapgrad.train import Carry


class Follower(RunDirectory):
    """A run that another process writes. It is read where it is resumed; a new one has nothing to read."""

    def __init__(self, path: Path, begun_with: tuple[Options, str] | None = None) -> None:
        """`begun_with`: the options of a new run, and the digest of its data."""
        super().__init__(path)
        self._begun_with = begun_with

    def options(self) -> Options:
        return super().options() if self._begun_with is None else self._begun_with[0]

    def about(self) -> Record:
        return super().about() if self._begun_with is None else about(*self._begun_with)

    def metrics(self) -> list[Record]:
        return super().metrics() if self._begun_with is None else []

    def outcome(self) -> Record | None:
        return super().outcome() if self._begun_with is None else None

    def checkpoint(self) -> Checkpoint | None:
        return super().checkpoint() if self._begun_with is None else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def append(self, record: Record) -> None:
        pass

    def forget_after(self, tokens: int) -> None:
        pass

    def finish(self, outcome: Record) -> None:
        pass

    def reopen(self) -> None:
        pass

    def save(self, carry: Carry, totals: Totals, options: Options) -> None:
        checkpoint.send(carry)
