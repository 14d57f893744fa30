"""A run's directory.

    config.toml       the options, resolved: what `resume` starts from
    about.json        machine, versions, backend, a digest of the data
    metrics.jsonl     one record a line, as training went
    checkpoints/      TOKENS.safetensors: everything that training goes on from; the last two
    outcome.json      how it ended; not there while it can go on
    lock              held by the process that trains it

Every file is written whole or not at all (metrics line by line), so a run may be killed at any moment.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snapgrad import machine
from snapgrad.files import PART
from snapgrad.runs import checkpoint, disk, toml
from snapgrad.runs.checkpoint import Checkpoint, NotWhole, Totals
from snapgrad.runs.disk import Record
from snapgrad.runs.options import MAY_CHANGE, TASKS, Options
from snapgrad.train import Carry

KEPT = 2  # checkpoints: the last good one stays beside the newest
COUNTS = Totals._fields  # in every record


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @classmethod
    def create(cls, path: Path, options: Options, data: str) -> RunDirectory:
        """A new run on data of that digest; refuses a place where something is. It appears whole or not at all."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            advice = f"; go on with it: {cls(path).resume_command}" if (path / "config.toml").is_file() else ""
            raise ValueError(f"`out` must be new or empty, got {str(path)!r}{advice}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"`out` must be in a folder, got {str(path)!r}, which is below a file") from None
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as name:
            made = cls(Path(name) / "run")
            made.path.mkdir()
            made._write_json("about.json", about(options, data))
            disk.write(made.path / "config.toml", toml.text(options))
            os.replace(made.path, path)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A run that was begun before."""
        if not (path / "config.toml").is_file():
            raise ValueError(f"`run` must be a directory with a config.toml, got {str(path)!r}")
        return cls(path)

    @property
    def resume_command(self) -> str:
        """What a person types to go on with it."""
        return f"snapgrad resume {shlex.quote(str(self.path))}"

    def options(self) -> Options:
        """The options that it was begun with."""
        source = self.path / "config.toml"
        values = toml.read(source)
        task = values.get("task")
        if not isinstance(task, str) or task not in TASKS:
            raise ValueError(f"`task` must be one of {', '.join(TASKS)} in {source}, got {task!r}")
        for field in dataclasses.fields(TASKS[task]):
            if field.default is not None and field.name not in values:
                raise ValueError(
                    f"`{field.name}` must be in {source}, got nothing: another version of snapgrad wrote it"
                )
        return TASKS[task](**toml.checked(values, task, source))

    def about(self) -> Record:
        """The machine, versions and data that it was begun with."""
        return disk.read_json(self.path / "about.json", ("snapgrad", "jax", "jaxlib", "backend", "data"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training the same run, where the system can."""
        refusal = f"another process is training the run in {self.path}; a run must have one at a time"
        with disk.locked(self.path / "lock", refusal):
            for path in (*self.path.glob(f".*{PART}"), *self._checkpoints.glob(f".*{PART}")):
                path.unlink()  # a process that was killed has left it
            yield

    # ---- metrics

    def metrics(self) -> list[Record]:
        """All records; a last line that was cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [_record(line, f"line {number} of {path}") for number, line in enumerate(lines, 1)]

    def append(self, record: Record) -> None:
        """Adds one record, on the disk before a checkpoint says that this is past."""
        disk.append_line(self.path / "metrics.jsonl", json.dumps(record))

    def forget_after(self, tokens: int) -> None:
        """Drops records of what will be trained once more."""
        kept = [record for record in self.metrics() if record["tokens"] <= tokens]
        if tokens and (not kept or kept[-1]["tokens"] != tokens):
            path = self.path / "metrics.jsonl"
            raise ValueError(f"{path} must have a record at {tokens} tokens, where the checkpoint is, got none")
        disk.write(self.path / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    # ---- outcome

    def outcome(self) -> Record | None:
        """How it ended, or None."""
        path = self.path / "outcome.json"
        try:
            found = disk.read_json(path, ("status", *COUNTS))
        except FileNotFoundError:
            return None
        if found["status"] not in ("finished", "diverged"):
            raise ValueError(f"`status` must be 'finished' or 'diverged' in {path}, got {found['status']!r}")
        return found

    def finish(self, outcome: Record) -> None:
        """Writes how it ended."""
        self._write_json("outcome.json", outcome)

    def reopen(self) -> None:
        """Forgets that it has ended."""
        (self.path / "outcome.json").unlink(missing_ok=True)

    # ---- checkpoints

    def save(self, carry: Carry, totals: Totals, options: Options) -> None:
        """Writes a checkpoint, named by its tokens; the last good one stays."""
        self._checkpoints.mkdir(exist_ok=True)
        checkpoint.write(self._checkpoints / f"{totals.tokens}.safetensors", carry, totals, toml.plain(options))
        # Later ones are of an attempt that could not be gone on with: what they hold is trained once more.
        past = [path for path in self._saved() if int(path.stem) <= totals.tokens]
        for path in set(self._saved()) - set(past[:KEPT]):
            path.unlink()

    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None if there is none yet; warns of those that it skips."""
        options, skipped = self.options(), []
        for path in self._saved():
            try:
                found = checkpoint.read(path)
            except NotWhole as why:
                if not path.exists():  # a process that trains it has written newer ones
                    return self.checkpoint()
                skipped.append(f"{path.name} ({why})")
                continue
            if skipped:
                warnings.warn(
                    f"{'; '.join(skipped)}: skipped in {self._checkpoints}, going on from {path.name}", stacklevel=2
                )
            self._check_unchanged(toml.plain(options), found.options)
            return found
        if skipped:
            raise ValueError(f"a checkpoint in {self._checkpoints} must be whole, got {'; '.join(skipped)}")
        if self._checkpoints.is_dir() and any(path.is_dir() for path in self._checkpoints.iterdir()):
            raise ValueError(
                f"the checkpoints in {self._checkpoints} must be safetensors files, got folders: an older version of "
                "snapgrad wrote them, and only that one can go on with them"
            )
        if self.metrics():
            raise ValueError(f"a run with records must have a checkpoint, got none in {self._checkpoints}")
        return None

    def _check_unchanged(self, now: Record, begun: Record) -> None:
        """Refuses options that are not those of the checkpoint, but for those that change no weight."""
        fixed = (set(now) | set(begun)) - set(MAY_CHANGE)
        if now.get("schedule") != "constant" and "schedule_updates" not in now:
            fixed.add("tokens")  # the schedule ends with them
        for name in sorted(fixed):
            if now.get(name) != begun.get(name):
                was, got = (values.get(name, "nothing") for values in (begun, now))
                raise ValueError(
                    f"`{name}` must be the one that the run was begun with, {was}, got {got} in "
                    f"{self.path / 'config.toml'}: its weights and their state belong to that one"
                )

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _saved(self) -> list[Path]:
        """The files of all checkpoints, the newest first."""
        found = [path for path in self._checkpoints.glob("*.safetensors") if path.stem.isdecimal()]
        return sorted(found, key=lambda path: -int(path.stem))

    def _write_json(self, name: str, content: Record) -> None:
        disk.write(self.path / name, json.dumps(content, indent=1) + "\n")


def _record(line: bytes, source: str) -> Record:
    found = disk.parse_json(line, COUNTS, source)
    for name, value in found.items():
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"`{name}` must be a number in {source}, got {value!r}: the file is damaged")
    return found


def about(options: Options, data: str) -> Record:
    """What a run is recorded with, beside its options."""
    described = machine.describe()
    if options.backend == "reference":
        described["backend"] = "reference"
    return {**described, "data": data}
