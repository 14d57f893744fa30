"""A run in a process of its own, as both executors start it: begun anew, or resumed where its directory is found."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from snapgrad.runs import toml
from snapgrad.runs.directory import RunDirectory
from snapgrad.runs.disk import Record
from snapgrad.runs.options import Options
from snapgrad.sweep.results import Result, of_run
from snapgrad.sweep.study import identity

TAIL = 4096  # bytes at the end of metrics.jsonl that hold its last record


class RunProcess:
    """`snapgrad train` or `snapgrad resume` on these cores, with that many threads if a number is given."""

    def __init__(self, directory: Path, options: Options, cores: Sequence[int], threads: int | None = None):
        self.directory, self.cores = directory, tuple(cores)
        self._config = directory.with_name(f".{directory.name}.started-with")  # no name that a person's file may have
        arguments = self._arguments(options)
        self._said: list[str] = []
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  a pipe that nobody reads would fill up and hold it
        worker = [sys.executable, "-m", "snapgrad.sweep.worker", ",".join(map(str, cores)), str(os.getpid())]
        # XLA makes as many threads as NPROC says.
        environment = os.environ if threads is None else {**os.environ, "NPROC": str(threads)}
        self._process = subprocess.Popen(
            [*worker, *arguments], stdout=subprocess.DEVNULL, stderr=self._errors, text=True, env=environment
        )

    def _arguments(self, options: Options) -> list[str]:
        if (self.directory / "config.toml").is_file():
            _check_same(self.directory, options)
            return ["resume", str(self.directory)]
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text(toml.text(options), encoding="utf-8")
        return ["train", options.task, "--config", str(self._config), "--out", str(self.directory)]

    def code(self) -> int | None:
        code = self._process.poll()
        if code is not None and not self._errors.closed:
            self._config.unlink(missing_ok=True)
            self._errors.seek(0)
            self._said = self._errors.read().strip().splitlines()
            self._errors.close()
        return code

    def message(self) -> str:
        """The last line that it wrote to standard error, if it has ended."""
        return self._said[-1] if self._said else ""

    def record(self) -> Record | None:
        try:
            with open(self.directory / "metrics.jsonl", "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - TAIL))
                lines = file.read().split(b"\n")[:-1]
            return json.loads(lines[-1]) if lines else None
        except (OSError, ValueError):
            return None  # not there yet, or being written

    def result(self) -> Result:
        return of_run(RunDirectory.open(self.directory))

    def terminate(self) -> None:
        """Asks it to stop at the end of its slice."""
        if self.code() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Until it has ended."""
        self._process.wait()
        self.code()


def _check_same(directory: Path, options: Options) -> None:
    """Refuses to resume a run that was begun with other options: what came out would not be what is asked for."""
    begun = RunDirectory.open(directory).options()
    if identity(dataclasses.asdict(begun), begun) != identity(dataclasses.asdict(options), options):
        raise ValueError(
            f"the run in {str(directory)!r} must have the options that are asked for, got others in its config.toml: "
            "delete it, or train elsewhere"
        )
