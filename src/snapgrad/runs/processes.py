"""A run over the devices of a mesh, in this process or in several that `jax.distributed` connects.

All processes carry out the same training, each on its own devices; what they decide by the clock or by a signal they
decide together. Only the first writes the run.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from snapgrad.algorithms.placement import wait_for_all
from snapgrad.kernels.share import BATCH, PARAMS
from snapgrad.runs.heartbeat import MOST_SILENT, heartbeat

# After so long JAX ends the others of a process that answers nothing, in its own words: later than `heartbeat.py`.
JAX_HEARTBEAT_SECONDS = 100
SHUTDOWN_SECONDS = 30
LOST = 75  # the exit code, EX_TEMPFAIL of sysexits.h

# What errors of JAX's runtime speak of that come from another process or the way to it, and not from this one.
ABOUT_OTHERS = ("gloo", "unavailable", "deadline_exceeded", "coordination", "barrier", "heartbeat")
LONGEST_PATH = 4096  # bytes


class ProcessLost(Exception):
    """Another process of the run has ended, or cannot be reached: the run stands and can be resumed."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Where a run is carried out. What it is does not depend on it: a run resumes on any other mesh."""

    mesh: str | None = None
    """Devices to split the work over, such as "batch=2,params=4": sequences side by side, and blocks of J."""

    coordinator: str | None = None
    """HOST:PORT at which process 0 listens, the same in every process; none for a run in one process."""

    process_id: int | None = None
    """The number of this process, from 0 on. Process 0 alone writes the run."""

    processes: int | None = None
    """How many processes there are; every one is started with the same options."""

    def connect(self) -> Mesh | None:
        """The mesh, with all processes connected; what does not fit is refused before anything waits for another."""
        together = {name: getattr(self, name) for name in ("coordinator", "process_id", "processes")}
        missing = [name for name, value in together.items() if value is None]
        if missing and len(missing) < len(together):
            raise ValueError(f"`{missing[0]}` must be given with {_listed(together, missing)}, got nothing")
        if self.mesh is None:
            if not missing:
                raise ValueError("`mesh` must be given with `coordinator`, such as batch=2, got nothing")
            return None
        shape, count = parse_mesh(self.mesh), self.processes or 1
        if not missing:
            self._check_processes(int(np.prod(list(shape.values()))))
        _ask_for_devices(int(np.prod(list(shape.values()))) // count)
        if not missing:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            try:
                jax.distributed.initialize(
                    self.coordinator,
                    self.processes,
                    self.process_id,
                    heartbeat_timeout_seconds=JAX_HEARTBEAT_SECONDS,
                    shutdown_timeout_seconds=SHUTDOWN_SECONDS,
                )
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise ValueError(
                    f"`coordinator` must be where process 0 listens, got {self.coordinator!r} ({reason})"
                ) from None
        return mesh_of(shape)

    def _check_processes(self, devices: int) -> None:
        assert self.coordinator is not None
        assert self.processes is not None
        assert self.process_id is not None
        host, colon, port = self.coordinator.rpartition(":")
        if not host or not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"`coordinator` must be HOST:PORT, got {self.coordinator!r}")
        if self.processes < 1 or devices % self.processes:
            raise ValueError(
                f"`processes` must be a number >= 1 that divides the {devices} devices of `mesh`, got {self.processes}"
            )
        if not 0 <= self.process_id < self.processes:
            raise ValueError(f"`process_id` must be in [0, {self.processes}), got {self.process_id}")


def parse_mesh(text: str) -> dict[str, int]:
    """The devices along each axis, of a text such as "batch=2,params=4"."""
    shape: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (word.strip() for word in part.partition("="))
        if axis not in (BATCH, PARAMS) or axis in shape or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"`mesh` must be such as batch=2,params=4, with numbers >= 1, got {text!r}")
        shape[axis] = int(size)
    return shape


def mesh_of(shape: dict[str, int]) -> Mesh:
    """A mesh of all devices; refuses a shape of another number of them."""
    devices, wanted = jax.devices(), int(np.prod(list(shape.values())))
    if len(devices) != wanted:
        given = ",".join(f"{axis}={size}" for axis, size in shape.items())
        raise ValueError(f"`mesh` must have as many devices as there are, {len(devices)}, got {given} with {wanted}")
    return Mesh(np.array(devices).reshape(list(shape.values())), tuple(shape))


def _ask_for_devices(count: int) -> None:
    """On CPU, makes as many devices of this process as the mesh needs, unless that has been settled elsewhere."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError:  # JAX has begun: its devices are what they are
            return


def _listed(given: dict[str, object], missing: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in given if name not in missing)


def is_first() -> bool:
    """Whether this process writes the run."""
    return jax.process_index() == 0


def agree(asked: int, is_due: bool) -> tuple[int, bool]:
    """A signal that any process was sent, or 0; and whether the clock of the first says that a checkpoint is due."""
    if jax.process_count() == 1:
        return asked, is_due
    votes = multihost_utils.process_allgather(np.array([asked, is_due], np.int32))
    return int(votes[:, 0].max()), bool(votes[0, 1])


def check_same(what: str, value: str) -> None:
    """Refuses to train where the processes were given different things."""
    if jax.process_count() == 1:
        return
    wait_for_all()
    digest = np.frombuffer(hashlib.sha256(value.encode()).digest()[:16], np.int32)
    if not (multihost_utils.process_allgather(digest) == digest).all():
        raise ValueError(f"{what} must be the same in all processes, got others in some")


def await_the_first() -> None:
    """Waits until the first process has written what it writes.

    The others have nothing to write: they would end, and JAX would end the first for it after half a minute.
    """
    agree(0, False)


def of_the_first(path: Path) -> Path:
    """The path that the first process has, in all of them."""
    if jax.process_count() == 1:
        return path
    wait_for_all()
    text = os.fsencode(path)
    own = np.frombuffer(text.ljust(LONGEST_PATH, b"\0"), np.uint8)
    return Path(os.fsdecode(np.asarray(multihost_utils.broadcast_one_to_all(own)).tobytes().rstrip(b"\0")))


@contextmanager
def others_watched(resume: str) -> Iterator[None]:
    """Says in one sentence that another process was lost, where JAX would tell of a broken connection.

    One that falls silent, and breaks no connection, ends this process at once: it waits inside a program of XLA, where
    no exception reaches it.
    """

    def end(process: int) -> None:
        print(f"\nerror: {_lost(f'process {process} has been silent for {MOST_SILENT} s', resume)}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(LOST)

    try:
        with heartbeat(end):
            yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if jax.process_count() == 1 or not any(words in str(error).lower() for words in ABOUT_OTHERS):
            raise
        raise ProcessLost(_lost(str(error).splitlines()[0][:200], resume)) from None


def _lost(why: str, resume: str) -> str:
    return (
        f"another process of the run has ended or cannot be reached ({why}); the last checkpoint is unharmed, go on "
        f"with: {resume}"
    )
