"""Runs as processes on this machine: as many at once as there are slots, each on cores of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from snapgrad import machine
from snapgrad.runs.options import Options
from snapgrad.sweep.process import RunProcess


@dataclass
class LocalExecutor:
    """Shares the machine's cores among `jobs` processes, so that none slows another."""

    jobs: int
    running: list[RunProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        cores = machine.cores()
        self.jobs = min(self.jobs, len(cores))
        self._slots = [tuple(cores[slot :: self.jobs]) for slot in range(self.jobs)]

    @property
    def free(self) -> bool:
        return len(self.running) < self.jobs

    def start(self, directory: Path, options: Options) -> None:
        taken = {job.cores for job in self.running}
        self.running.append(RunProcess(directory, options, next(slot for slot in self._slots if slot not in taken)))

    def ended(self) -> list[RunProcess]:
        done = [job for job in self.running if job.code() is not None]
        self.running = [job for job in self.running if job not in done]
        return done

    def stop(self) -> None:
        for job in self.running:
            job.terminate()
        for job in self.running:
            job.wait()
