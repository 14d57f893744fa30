"""Python's garbage collector, halted while many objects are made that will stay.

It looks through all objects again and again while modules are imported and programs are traced: a fifth of the time
from the start of a process to its first sample.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collection for as long as the context lasts; afterwards as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
