"""What a stream has come to, on disk, so that a process may be killed at any moment.

    OUT               a line of JSON for every row: its prediction. A whole line is acknowledged.
    OUT.state/
      options.json    what it was begun with
      N.safetensors   the learner after N rows
      N.json          all else that it goes on from, with a digest of those rows; written last: then a checkpoint counts
      N.jsonl         the rows after those, each written before it is learnt from

To go on: the newest checkpoint, and from there the acknowledged rows once more, which brings the learner to the same
bits. Lines are handed to the system one by one, which a killed process does not
take back; at a checkpoint they are on the disk.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
from pathlib import Path
from typing import IO, Any

from snapgrad.files import PART
from snapgrad.learner.online import OnlineLearner
from snapgrad.runs import disk
from snapgrad.streams.rows import Row


def as_line(row: Row) -> str:
    """A row as it is written down."""
    return json.dumps(row._asdict())


def chained(digest: str, line: str) -> str:
    """The digest of the rows before and one more."""
    return hashlib.blake2b(f"{digest} {line}".encode(), digest_size=16).hexdigest()


class Journal:
    """The files of one stream."""

    def __init__(self, out: Path, options: dict[str, Any], resume: bool) -> None:
        self.out, self.folder = out, out.with_name(f"{out.name}.state")
        if resume:
            self._check_same(options)
        else:
            self._check_new(out)
            self.folder.mkdir(exist_ok=True)
            disk.write(self.folder / "options.json", json.dumps(options, indent=1) + "\n")
            out.touch()
        self.rows, self.digest = 0, ""  # of those that are acknowledged
        self._recorded = ""  # the digest with the row that is being answered
        self._answers: IO[str] = open(out, "a", encoding="utf-8")  # noqa: SIM115  closed by `close`
        self._log: IO[str] | None = None

    def _check_new(self, out: Path) -> None:
        if not out.parent.is_dir():
            raise ValueError(f"`out` must be in a folder that exists, got {str(out)!r}")
        if out.exists() or self.folder.exists():
            more = "; go on with it: --resume" if (self.folder / "options.json").is_file() else ""
            raise ValueError(f"`out` must be new, got {str(out)!r}{more}")

    def _check_same(self, options: dict[str, Any]) -> None:
        source = self.folder / "options.json"
        if not source.is_file() or not self.out.is_file():
            raise ValueError(f"`out` must be what a stream was begun with to resume, got {str(self.out)!r}")
        begun = disk.read_json(source, tuple(options))
        for name, value in options.items():
            if begun[name] != value:
                raise ValueError(
                    f"`{name}` must be the one that the stream was begun with, {begun[name]!r}, got {value!r}"
                )

    @staticmethod
    def _drop_torn(path: Path) -> int:
        """Cuts off a last line that is not whole; returns how many there are."""
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
        return content.count(b"\n")

    def restore(self) -> tuple[OnlineLearner, Any, list[Row]] | None:
        """The learner and all else of the last checkpoint, and the rows to learn once more; None before the first.

        First it removes what a killed process has left half written, so no other process may be at the stream.
        """
        for path in self.folder.glob(f".*{PART}"):
            path.unlink()
        self.rows = self._drop_torn(self.out)
        for number in self._checkpoints():
            if number > self.rows:
                raise ValueError(f"{self.out} must have the {number} lines of the last checkpoint, got {self.rows}")
            learner = OnlineLearner.load(self._path(number, "safetensors"))
            state = disk.read_json(self._path(number, "json"), ("model", "score", "digest"))
            log = self._path(number, "jsonl")
            lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
            again = self.rows - number
            if len(lines) < again:
                raise ValueError(f"{log} must have the {again} rows that were acknowledged, got {len(lines)}: damaged")
            known = [line.decode() for line in lines[:again]]  # without what was not acknowledged
            disk.write(log, "".join(line + "\n" for line in known))
            self._log = open(log, "a", encoding="utf-8")  # noqa: SIM115
            self.digest = functools.reduce(chained, known, state["digest"])
            return learner, state, [Row(**disk.parse_json(line.encode(), ("x", "y"), str(log))) for line in known]
        if self.rows:
            raise ValueError(f"a stream with predictions must have a checkpoint, got none in {self.folder}")
        return None

    def record(self, row: Row) -> None:
        """Writes a row down, before it is learnt from."""
        assert self._log is not None  # there is a checkpoint before the first row
        line = as_line(row)
        self._recorded = chained(self.digest, line)
        self._log.write(line + "\n")
        self._log.flush()

    def acknowledge(self, answer: str) -> None:
        """Writes the answer to a row; from here on it is not lost."""
        self._answers.write(answer + "\n")
        self._answers.flush()
        self.rows, self.digest = self.rows + 1, self._recorded

    def checkpoint(self, learner: OnlineLearner, state: Any) -> None:
        """Writes what the stream goes on from, and then removes what it does not need any more."""
        os.fsync(self._answers.fileno())
        learner.save(self._path(self.rows, "safetensors"))
        if self._log is not None:
            self._log.close()
        self._log = open(self._path(self.rows, "jsonl"), "w", encoding="utf-8")  # noqa: SIM115
        disk.write(self._path(self.rows, "json"), json.dumps({**state, "digest": self.digest}) + "\n")
        for path in self.folder.iterdir():
            if path.stem.isdecimal() and int(path.stem) != self.rows:
                path.unlink()

    def close(self) -> None:
        """Closes the files."""
        self._answers.close()
        if self._log is not None:
            self._log.close()

    @property
    def resume_hint(self) -> str:
        """What a person adds to the command to go on."""
        return f"the same command with --out {shlex.quote(str(self.out))} --resume"

    def _checkpoints(self) -> list[int]:
        """The rows of all checkpoints, the newest first."""
        return sorted((int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal()), reverse=True)

    def _path(self, rows: int, ending: str) -> Path:
        return self.folder / f"{rows}.{ending}"
