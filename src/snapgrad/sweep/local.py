"""Runs as processes on this machine: as many at once as there are slots, each on cores of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from snapgrad import machine
from snapgrad.runs import toml
from snapgrad.runs.options import Options


@dataclass
class Job:
    """A run that is being trained."""

    directory: Path
    options: Options
    cores: tuple[int, ...]
    process: subprocess.Popen[str]
    config: Path
    errors: IO[str]  # a file: a pipe that nobody reads would fill up and hold the run

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def message(self) -> str:
        """The last line that it wrote to standard error."""
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return lines[-1] if lines else ""


@dataclass
class LocalExecutor:
    """Shares the machine's cores among `jobs` processes, so that none slows another."""

    jobs: int
    running: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        cores = machine.cores()
        self.jobs = min(self.jobs, len(cores))
        self._slots = [tuple(cores[slot :: self.jobs]) for slot in range(self.jobs)]

    @property
    def free(self) -> bool:
        return len(self.running) < self.jobs

    def start(self, directory: Path, options: Options) -> None:
        """Begins the run, or goes on with what is there."""
        taken = {job.cores for job in self.running}
        cores = next(slot for slot in self._slots if slot not in taken)
        config = directory.with_name(directory.name + ".toml")
        if (directory / "config.toml").is_file():
            arguments = ["resume", str(directory)]
        else:
            directory.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(toml.text(options), encoding="utf-8")
            arguments = ["train", options.task, "--config", str(config), "--out", str(directory)]
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  open for as long as the process runs
        process = subprocess.Popen(
            [sys.executable, "-m", "snapgrad.sweep.worker", ",".join(map(str, cores)), str(os.getpid()), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )
        self.running.append(Job(directory, options, cores, process, config, errors))

    def ended(self) -> list[Job]:
        """The jobs that have come to an end since the last call."""
        done = [job for job in self.running if job.code() is not None]
        self.running = [job for job in self.running if job not in done]
        for job in done:
            job.config.unlink(missing_ok=True)
        return done

    def stop(self) -> None:
        """Asks all of them to stop at the end of their slice, and waits until they have."""
        for job in self.running:
            if job.code() is None:
                job.process.send_signal(signal.SIGTERM)
        for job in self.running:
            job.process.wait()
