"""`snapgrad stream`."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import tyro
from rich.console import Console

from snapgrad.kernels.select import Backend
from snapgrad.runs import disk
from snapgrad.runs.training import Interrupted
from snapgrad.streams.journal import Journal, as_line, chained
from snapgrad.streams.models import Classification, Regression
from snapgrad.streams.rows import Row, read_rows
from snapgrad.streams.score import Score

SHOWN_EVERY = 1.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network and how it learns: what a stream must be resumed with as it was begun."""

    target: str
    """The column, or the key in JSON lines, that is predicted from the others and from the rows before."""

    labels: bool = False
    """The target is a label, not a number."""

    features: int = 32
    """Slots for features by name; what comes when most are taken shares the last quarter."""

    cell: Literal["vanilla", "gru", "lstm"] = "gru"
    """The recurrent cell."""

    units: int = 64
    """Its units."""

    sparsity: float = 0.0
    """Share of its weights that do not exist."""

    algorithm: Literal["snap", "rtrl", "rflo", "uoro", "frozen"] = "snap"
    """How gradients are computed."""

    order: int = 1
    """Order of SnAp."""

    optimiser: str = "adam"
    """Of Optax, by name, with arguments if need be: adam(b1=0.5)."""

    learning_rate: float = 3e-3
    """Its learning rate."""

    standardise: bool = True
    """Numbers by their running mean and deviation."""

    seed: int = 0
    """Determines weights and sparsity."""

    backend: Backend = "auto"
    """Native, reference, or native wherever it can run."""

    def model(self) -> Regression | Classification:
        """A fresh one; refuses what does not fit together."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if name not in ("target", "labels")}
        return Classification(**given) if self.labels else Regression(**given)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Predict, then learn, row by row: a CSV file or JSON lines, also from standard input and without an end.

    For every row a line of JSON: the prediction, the target, and the running error so far (the mean absolute error, or
    the share of wrong labels). With --out, a line that is in the file is never lost: after Ctrl-C or a kill, --resume
    goes on behind the last one, to the same bits. Rows of a file that were answered are skipped then; standard input
    begins with the first row that was not.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A CSV file with a header, or JSON lines (.jsonl); - for standard input."""

    network: Network

    out: Path | None = None
    """The file that predictions go to, new; by default they are printed, and nothing can be resumed."""

    resume: bool = False
    """Go on with what is in --out."""

    checkpoint_every: float = 60.0
    """Seconds between checkpoints; a resumed stream learns the rows after the last one once more."""

    def run(self) -> None:
        """Runs to the end of the stream, or until it is interrupted."""
        if not self.checkpoint_every >= 0:
            raise ValueError(f"`checkpoint_every` must be a number >= 0, got {self.checkpoint_every}")
        if self.resume and self.out is None:
            raise ValueError("`out` must be given with `resume`, got none")
        model = self.network.model()  # before anything is written
        with ExitStack() as stack:
            file = sys.stdin if str(self.file) == "-" else stack.enter_context(opened(self.file))
            rows = read_rows(file, str(self.file), self.network.target)
            journal = None
            score = Score()
            if self.out is not None:
                journal = Journal(self.out, dataclasses.asdict(self.network), self.resume)
                stack.callback(journal.close)
                refusal = f"another process is at the stream of {self.out}; there must be one at a time"
                stack.enter_context(disk.locked(journal.folder / "lock", refusal))
                restore(journal, model, score)
                if file is not sys.stdin:
                    skip(rows, journal, str(self.file))
            asked = stack.enter_context(signals())
            self.go_on(rows, model, score, journal, asked)

    def go_on(
        self,
        rows: Iterator[Row],
        model: Regression | Classification,
        score: Score,
        journal: Journal | None,
        asked: Asked,
    ) -> None:
        """Answers row by row."""
        console = Console(stderr=True, highlight=False)
        begun = saved_at = shown_at = time.monotonic()
        before = score.rows
        while (row := asked.next(rows)) is not None:
            if journal is not None:
                journal.record(row)
            answer = json.dumps(score.answer(row, model))
            if journal is not None:
                journal.acknowledge(answer)
            else:
                print(answer, flush=True)
            now = time.monotonic()
            if journal is not None and now - saved_at >= self.checkpoint_every:
                journal.checkpoint(model.learner, {"model": model.state(), "score": score.state()})
                saved_at = now
            if console.is_terminal and journal is not None and now - shown_at >= SHOWN_EVERY:
                console.print(score.summary((score.rows - before) / (now - begun)), end="\r")
                shown_at = now
        if journal is not None:
            journal.checkpoint(model.learner, {"model": model.state(), "score": score.state()})
        rate = (score.rows - before) / max(time.monotonic() - begun, 1e-9)
        console.print(score.summary(rate), soft_wrap=True)
        if asked.number is not None:
            more = "" if journal is None else f"; go on with {journal.resume_hint}"
            raise Interrupted(f"stopped after {score.rows:,} rows{more}", asked.number)


def restore(journal: Journal, model: Regression | Classification, score: Score) -> None:
    """Brings the model to where the journal ends, or begins one."""
    found = journal.restore()
    if found is None:
        journal.checkpoint(model.learner, {"model": model.state(), "score": score.state()})
        return
    learner, state, again = found
    model.restore(state["model"], learner)
    score.rows, score.judged, score.total = state["score"]
    for row in again:
        score.answer(row, model)


def skip(rows: Iterator[Row], journal: Journal, name: str) -> None:
    """Reads on to the first row that was not answered; refuses a file that does not begin with those that were."""
    digest, needed = "", f"`file` must begin with the {journal.rows} rows that were answered before, got {name}"
    for number in range(journal.rows):
        row = next(rows, None)
        if row is None:
            raise ValueError(f"{needed} with {number}")
        digest = chained(digest, as_line(row))
    if digest != journal.digest:
        raise ValueError(f"{needed} with others")


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """A text file; refuses what is none."""
    if not path.is_file() and not path.is_fifo():
        reason = "a folder or a device" if path.exists() else "which does not exist"
        raise ValueError(f"`file` must be a CSV file, JSON lines, or - for standard input, got {str(path)!r}, {reason}")
    with open(path, encoding="utf-8", newline="") as file:
        yield file


class Asked:
    """Whether somebody wants it to stop: at once while it waits for a row, else when the row is answered."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the signal
        self._waiting = False

    def ask(self, number: int, frame: Any) -> None:
        """Takes a signal."""
        self.number = number
        if self._waiting:
            raise InterruptedError

    def next(self, rows: Iterator[Row]) -> Row | None:
        """The next row, or None at the end or if it is to stop."""
        self._waiting = True
        try:
            return None if self.number is not None else next(rows, None)
        except InterruptedError:
            return None
        finally:
            self._waiting = False


@contextmanager
def signals() -> Iterator[Asked]:
    """Ctrl-C and SIGTERM as a wish to stop."""
    asked = Asked()
    before = {number: signal.signal(number, asked.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
