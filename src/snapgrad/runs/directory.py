"""A run's directory.

    config.toml       the options, resolved: what `resume` starts from
    about.json        machine, versions, backend, a digest of the data
    metrics.jsonl     one record a line, as training went
    checkpoints/      Orbax: everything that training goes on from
    outcome.json      how it ended; not there while it can go on
    lock              held by the process that trains it

Every file is written whole or not at all (metrics line by line), so a run may be killed at any moment.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import tyro

from snapgrad import machine
from snapgrad.runs import toml
from snapgrad.runs.options import TASKS, Options
from snapgrad.train import Carry

Record = dict[str, Any]
KEPT = 2  # checkpoints: the last good one stays until the next is whole


class Totals(NamedTuple):
    """What a run has seen so far."""

    tokens: int = 0
    updates: int = 0
    seconds: float = 0.0  # of training: without compilation, validation and checkpoints


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._checkpoints: Any = None

    @classmethod
    def create(cls, path: Path, options: Options, data: str) -> RunDirectory:
        """A new run on data of that digest; refuses a place where something is. It appears whole or not at all."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            advice = f"; go on with it: snapgrad resume {path}" if (path / "config.toml").is_file() else ""
            raise ValueError(f"`out` must be new or empty, got {str(path)!r}{advice}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as name:
            made = cls(Path(name) / "run")
            made.path.mkdir()
            made._write("about.json", json.dumps(about(options, data), indent=1) + "\n")
            made._write("config.toml", toml.text(options))
            os.replace(made.path, path)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A run that was begun before."""
        if not (path / "config.toml").is_file():
            raise ValueError(f"a run must be a directory with a config.toml, got {str(path)!r}")
        return cls(path)

    def options(self) -> Options:
        """The options that it was begun with."""
        source = self.path / "config.toml"
        values = toml.read(source)
        if values.get("task") not in TASKS:
            raise ValueError(f"`task` must be one of {', '.join(TASKS)} in {source}, got {values.get('task')!r}")
        kind = TASKS[values["task"]]
        for field in dataclasses.fields(kind):
            if field.default is not None and field.name not in values:
                raise ValueError(
                    f"`{field.name}` must be in {source}, got nothing: another version of snapgrad wrote it"
                )
        return tyro.cli(kind, args=toml.arguments(values, values["task"], source))

    def about(self) -> Record:
        """The machine, versions and data that it was begun with."""
        return json.loads((self.path / "about.json").read_text(encoding="utf-8"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training the same run, where the system can."""
        with open(self.path / "lock", "w") as file:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # Windows
                pass
            except OSError:
                raise ValueError(
                    f"another process is training the run in {self.path}; a run must have one at a time"
                ) from None
            try:
                yield
            finally:
                if self._checkpoints is not None:
                    self._checkpoints.close()
                    self._checkpoints = None

    # ---- metrics

    def metrics(self) -> list[Record]:
        """All records; a last line that was cut off by a crash is left out."""
        try:
            lines = (self.path / "metrics.jsonl").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def append(self, record: Record) -> None:
        """Adds one record."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())  # before a checkpoint says that this is past

    def forget_after(self, tokens: int) -> None:
        """Drops records of what will be trained once more."""
        kept = [record for record in self.metrics() if record["tokens"] <= tokens]
        self._write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    # ---- outcome

    def outcome(self) -> Record | None:
        """How it ended, or None."""
        try:
            return json.loads((self.path / "outcome.json").read_text())
        except FileNotFoundError:
            return None

    def finish(self, outcome: Record) -> None:
        """Writes how it ended."""
        self._write("outcome.json", json.dumps(outcome, indent=1) + "\n")

    # ---- checkpoints

    def save(self, carry: Carry, totals: Totals) -> None:
        """Writes a checkpoint, named by its tokens; the last good one stays until this one is whole."""
        import orbax.checkpoint as ocp

        self._manager().save(
            totals.tokens,
            args=ocp.args.Composite(
                carry=ocp.args.StandardSave(jax.tree.leaves(carry)), totals=ocp.args.JsonSave(totals._asdict())
            ),
        )

    def restore(self, like: Carry) -> tuple[Carry, Totals] | None:
        """The last checkpoint, in the shape of `like`, or None if there is none yet."""
        import orbax.checkpoint as ocp

        step = self._manager().latest_step()
        if step is None:
            return None
        leaves, structure = jax.tree.flatten(like)
        found = self._manager().restore(
            step,
            args=ocp.args.Composite(
                carry=ocp.args.StandardRestore([jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]),
                totals=ocp.args.JsonRestore(),
            ),
        )
        return jax.tree.unflatten(structure, found.carry), Totals(**found.totals)

    def _manager(self) -> Any:
        if self._checkpoints is None:
            import orbax.checkpoint as ocp

            logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of what a kill has left behind
            self._checkpoints = ocp.CheckpointManager(
                self.path / "checkpoints",
                options=ocp.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=False),
            )
        return self._checkpoints

    def _write(self, name: str, text: str) -> None:
        part = self.path / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, self.path / name)


def about(options: Options, data: str) -> Record:
    """What a run is recorded with, beside its options."""
    described = machine.describe()
    if options.backend == "reference":
        described["backend"] = "reference"
    return {**described, "data": data}
