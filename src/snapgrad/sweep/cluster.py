"""Runs as tasks of a Ray cluster, a core each; the only place that imports Ray.

A task starts the run's process on its node, passes on the records of its metrics as they come, and last what came out.
Where the directory of the run is on storage that the nodes share, a run whose node or worker died is resumed from its
checkpoint by the next task; elsewhere that one finds no directory, and begins anew.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snapgrad import machine
from snapgrad.runs import disk
from snapgrad.runs.disk import Record
from snapgrad.runs.options import Options
from snapgrad.sweep.executor import ENDED
from snapgrad.sweep.process import RunProcess
from snapgrad.sweep.results import Result

LOOK_EVERY = 0.2  # seconds, of a task at its process
CONNECT = 5  # seconds
KILLED, STOPPED = -9, 143


@dataclass(frozen=True)
class Ending:
    """The last word of a task."""

    code: int
    message: str = ""
    result: Result | None = None


def train(directory: Path, options: Options) -> Iterator[Record | Ending]:
    """The task: records while the run is trained, then its ending."""
    process = None
    try:
        process = RunProcess(directory, options, machine.cores(), threads=1)
        shown = None
        while (code := process.code()) is None:
            if (record := process.record()) is not None and record != shown:
                yield (shown := record)
            time.sleep(LOOK_EVERY)
        yield Ending(code, process.message(), process.result() if code in ENDED else None)
    except (ValueError, OSError) as error:
        yield Ending(2, f"error: {disk.sentence(error)}")
    finally:
        if process is not None:
            process.terminate()  # where the task is cancelled
            process.wait()


@dataclass
class ClusterJob:
    """A task, as it is seen from here."""

    directory: Path
    answers: Any  # of Ray: the values that the task yields
    newest: Record | None = None
    ending: Ending | None = None

    def listen(self) -> None:
        """Takes in what the task has said since the last call."""
        import ray

        while self.ending is None and ray.wait([self.answers], timeout=0)[0]:
            try:
                said = ray.get(next(self.answers))
            except ray.exceptions.TaskCancelledError:
                self.ending = Ending(STOPPED)
            except ray.exceptions.RayTaskError as error:  # a defect of the task itself
                self.ending = Ending(70, f"error: unexpected {error.cause!r} in a task")
            except (ray.exceptions.RayError, StopIteration) as error:  # its worker or its node died
                self.ending = Ending(KILLED, type(error).__name__)
            else:
                self.newest, self.ending = (self.newest, said) if isinstance(said, Ending) else (said, None)

    def code(self) -> int | None:
        return None if self.ending is None else self.ending.code

    def message(self) -> str:
        return "" if self.ending is None else self.ending.message

    def record(self) -> Record | None:
        return self.newest

    def result(self) -> Result:
        assert self.ending is not None
        assert self.ending.result is not None
        return self.ending.result


@dataclass
class RayExecutor:
    """Tasks of the cluster at `address`, or of one on this machine alone that ends with the sweep."""

    address: str | None
    jobs: int | None = None  # by default as many as the cluster has cores
    running: list[ClusterJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        import ray

        if self.address is not None:
            _check_listening(self.address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        with warnings.catch_warnings():
            # JAX warns of forks. Ray's run another program at once, to which JAX's locks mean nothing.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            if self.address is None:
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told of it
                cores = self.jobs or len(machine.cores())
                store = 128 << 20  # bytes: records and results are small
                ray.init("local", num_cpus=cores, include_dashboard=False, object_store_memory=store, **quiet)
            else:
                try:
                    ray.init(self.address, **quiet)
                except ConnectionError as error:  # such as a token that the cluster does not know
                    raise _refusal(self.address, error) from None
        self._train = ray.remote(train).options(num_cpus=1, max_retries=0, num_returns="streaming")

    @property
    def described(self) -> str:
        """What it is, as a person would say it."""
        return f"{_nodes()} node(s) of Ray with {_cores()} cores"

    @property
    def free(self) -> bool:
        cores = max(1, _cores())  # one may wait for a node to come
        return len(self.running) < (cores if self.jobs is None else min(self.jobs, cores))

    def start(self, directory: Path, options: Options) -> None:
        self.running.append(ClusterJob(directory, self._train.remote(directory, options)))

    def ended(self) -> list[ClusterJob]:
        for job in self.running:
            job.listen()
        done = [job for job in self.running if job.ending is not None]
        self.running = [job for job in self.running if job not in done]
        return done

    def stop(self) -> None:
        import ray

        for job in self.running:
            ray.cancel(job.answers)
        if self.running:
            # However long it takes: a process whose worker is ended before it could not write its checkpoint.
            ray.wait([job.answers.completed() for job in self.running], num_returns=len(self.running))
        for job in self.running:
            job.listen()
            job.ending = job.ending or Ending(STOPPED)
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Refuses an address where nobody listens: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _refusal(address, error) from None


def _refusal(address: str, why: Exception) -> ValueError:
    return ValueError(f"`ray` must be HOST:PORT of a cluster that this machine is part of, got {address!r} ({why})")


def _cores() -> int:
    """Of all nodes; they may come and go."""
    import ray

    return int(ray.cluster_resources().get("CPU", 0))


def _nodes() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())
