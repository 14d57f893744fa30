"""Processes that fall silent, with a store in memory in place of JAX's; real ones are stopped in test_processes.py."""

from __future__ import annotations

import time
from types import SimpleNamespace

import jax

from snapgrad.runs import heartbeat as module
from snapgrad.runs.heartbeat import ENDED, MOST_SILENT, Heartbeat, heartbeat


class Store:
    """That of JAX, in memory."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite
        self.values[key] = value

    def key_value_try_get(self, key):
        if key not in self.values:
            raise jax.errors.JaxRuntimeError("NOT_FOUND")
        return self.values[key]


def first_silent(own, beats, *others):
    """What a process finds after so many beats, in which the others do what they do."""
    for beat in range(beats):
        own.beat()
        for other in others:
            other(beat)
        if (found := own.silent_process()) is not None:
            return beat, found
    return None


def test_a_process_that_counts_no_further_is_silent():
    store = Store()
    own, second, third = (Heartbeat(store, number, 3) for number in range(3))
    assert first_silent(own, 3 * MOST_SILENT) is None  # the others have not begun
    assert first_silent(own, 3 * MOST_SILENT, lambda _: second.beat(), lambda _: third.beat()) is None
    beat, found = first_silent(own, 100, lambda _: third.beat(), lambda beat: beat < 10 and second.beat())
    assert found == 1
    assert MOST_SILENT <= beat - 10 <= MOST_SILENT + 1


def test_a_process_that_has_ended_is_not_silent():
    store = Store()
    own, other = Heartbeat(store, 0, 2), Heartbeat(store, 1, 2)
    other.beat()
    other.end()
    assert first_silent(own, 3 * MOST_SILENT) is None


class SlowStore(Store):
    """One that takes its time over a count."""

    def key_value_set(self, key, value, allow_overwrite=False):
        if value != ENDED:
            time.sleep(0.3)
        super().key_value_set(key, value, allow_overwrite)


def test_a_beat_under_way_does_not_overwrite_the_end(monkeypatch):
    store = SlowStore()
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    monkeypatch.setattr(module.jax, "process_index", lambda: 0)
    monkeypatch.setattr(module.distributed, "global_state", SimpleNamespace(client=store))
    with heartbeat(lambda process: None):
        time.sleep(0.05)
    time.sleep(0.5)
    assert list(store.values.values()) == [ENDED]


def test_a_store_that_does_not_answer_is_that_of_a_silent_first_process():
    own = Heartbeat(Store(), 1, 2)
    own.beat()  # and then waits for ever
    found = [own.silent_process() for _ in range(MOST_SILENT + 1)]
    assert found == [None] * MOST_SILENT + [0]
