"""Ctrl-C and SIGTERM as requests to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_requests(heard: Callable[[int], None] = lambda number: None) -> Iterator[list[int]]:
    """A list to which the numbers of the signals are appended as they come; `heard` is told of each.

    Only the main thread of a process can be told of signals: in another one the list stays empty.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        heard(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
