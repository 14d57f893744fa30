"""Notices a process of a run that has fallen silent: its machine hangs or cannot be reached, but no connection breaks.

Every process counts up in the store of `jax.distributed`, and looks at how far the others are. Time is counted in beats
of one's own, so that a process that was itself stopped for a while does not take the others for silent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import jax
from jax._src import distributed

BEAT_SECONDS = 1.0
MOST_SILENT = 30  # beats
ENDED = "ended"  # in place of a count


class Store(Protocol):
    """What is used of JAX's client; it may wait for ever where process 0 does not answer."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = ...) -> None: ...
    def key_value_try_get(self, key: str) -> str: ...


class Heartbeat:
    """The beats of this process, and how long each of the others has been silent."""

    def __init__(self, store: Store, own: int, processes: int) -> None:
        self._store, self._own = store, own
        self._counts: dict[int, str | None] = {process: None for process in range(processes) if process != own}
        self._silent = dict.fromkeys(range(processes), 0)  # this one itself, where the store does not answer
        self._beats = 0

    def beat(self) -> None:
        """Counts up, and hears from the others."""
        self._beats += 1
        self._store.key_value_set(_key(self._own), str(self._beats), allow_overwrite=True)
        for process, before in self._counts.items():
            try:
                now = self._store.key_value_try_get(_key(process))
            except jax.errors.JaxRuntimeError:  # it has not begun
                now = None
            if now is None or now == ENDED or now != before:
                self._silent[process] = 0
            self._counts[process] = now
        self._silent[self._own] = 0

    def silent_process(self) -> int | None:
        """Called once a beat: one that has been silent for too long, or None."""
        for process in self._silent:
            self._silent[process] += 1
        if self._silent[self._own] > MOST_SILENT:
            return 0  # which has the store
        return next((process for process in self._counts if self._silent[process] > MOST_SILENT), None)

    def end(self) -> None:
        """Tells the others that no more beats will come."""
        self._store.key_value_set(_key(self._own), ENDED, allow_overwrite=True)


@contextmanager
def heartbeat(lost: Callable[[int], None]) -> Iterator[None]:
    """While it lasts, `lost` is called, in a thread, with the number of a process that has fallen silent."""
    if jax.process_count() == 1:
        yield
        return
    client: Any = distributed.global_state.client  # JAX has no public store
    own = Heartbeat(client, jax.process_index(), jax.process_count())
    done = threading.Event()

    def beat() -> None:
        while not done.is_set():
            # Where the store is gone that is silence, unless the connections of the run tell of it first.
            with suppress(jax.errors.JaxRuntimeError):
                own.beat()
            done.wait(BEAT_SECONDS)

    def watch() -> None:
        while not done.wait(BEAT_SECONDS):
            if (process := own.silent_process()) is not None:
                lost(process)
                return

    threads = [threading.Thread(target=target, daemon=True) for target in (beat, watch)]
    for thread in threads:
        thread.start()
    try:
        yield
        done.set()
        threads[0].join(BEAT_SECONDS)  # a beat that is under way would overwrite the end
        own.end()
    finally:
        done.set()


def _key(process: int) -> str:
    return f"snapgrad heartbeat {process}"
