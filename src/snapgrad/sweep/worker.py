"""One run of a sweep in a process of its own: on cores of its own, and gone when the sweep is."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from snapgrad.runs import disk

PATIENCE = 600  # seconds
LOOK_EVERY = 0.2


def main() -> None:
    """`python -m snapgrad.sweep.worker CORES PARENT ARGUMENTS...`: `snapgrad ARGUMENTS...` on these cores."""
    cores, parent = sys.argv[1], int(sys.argv[2])
    if hasattr(os, "sched_setaffinity"):
        # Before JAX starts: XLA makes as many threads as there are cores to run on.
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    _end_with(parent)
    sys.argv = ["snapgrad", *sys.argv[3:]]
    if sys.argv[1] == "resume":
        await_release(Path(sys.argv[2]))
    from snapgrad.cli import main

    main()


def await_release(run: Path, patience: float = PATIENCE) -> None:
    """Waits for the worker of a sweep that was killed: it holds the run until it has written a last checkpoint."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            with disk.locked(run / "lock", "held"):
                return
        except ValueError:
            time.sleep(LOOK_EVERY)


def _end_with(parent: int) -> None:
    """Asks Linux to stop this process when its parent is killed: the run would be trained twice at once otherwise."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes
    import signal

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was killed before we asked
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
