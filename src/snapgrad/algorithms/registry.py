"""The algorithms by name: the one place where a string stands for an algorithm (for command lines and test suites)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from snapgrad.algorithms.bptt import bptt
from snapgrad.algorithms.frozen import frozen
from snapgrad.algorithms.interface import Algorithm
from snapgrad.algorithms.rflo import rflo
from snapgrad.algorithms.rtrl import rtrl
from snapgrad.algorithms.snap import snap
from snapgrad.algorithms.uoro import uoro

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "bptt": bptt,
    "rtrl": rtrl,
    "snap": snap,
    "rflo": rflo,
    "uoro": uoro,
    "frozen": frozen,
}

# As a person writes them.
TITLES: dict[str, str] = {
    "bptt": "BPTT",
    "rtrl": "RTRL",
    "snap": "SnAp",
    "rflo": "RFLO",
    "uoro": "UORO",
    "frozen": "Frozen",
}


def takes(algorithm: str, option: str) -> bool:
    """Whether an algorithm has such an option."""
    return option in inspect.signature(ALGORITHMS[algorithm]).parameters


def default(algorithm: str, option: str) -> Any:
    """What an option is when it is not given."""
    return inspect.signature(ALGORITHMS[algorithm]).parameters[option].default


def title(algorithm: str, order: int, update_every: int | None) -> str:
    """What an algorithm is called when it updates every so many steps (None: at the end of a sequence)."""
    if algorithm == "bptt" and update_every is not None:
        return f"Truncated BPTT, T = {update_every}"
    return f"{TITLES[algorithm]}-{order}" if takes(algorithm, "order") else TITLES[algorithm]
