"""The algorithms by name: the one place where a string stands for an algorithm (for command lines and test suites)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from snapgrad.algorithms.bptt import bptt
from snapgrad.algorithms.frozen import frozen
from snapgrad.algorithms.interface import Algorithm
from snapgrad.algorithms.kf_rtrl import kf_rtrl
from snapgrad.algorithms.ok import ok
from snapgrad.algorithms.rflo import rflo
from snapgrad.algorithms.rtrl import rtrl
from snapgrad.algorithms.snap import snap
from snapgrad.algorithms.topk import snap_topk
from snapgrad.algorithms.uoro import uoro

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "bptt": bptt,
    "rtrl": rtrl,
    "snap": snap,
    "snap_topk": snap_topk,
    "rflo": rflo,
    "uoro": uoro,
    "kf_rtrl": kf_rtrl,
    "ok": ok,
    "frozen": frozen,
}

# As a person writes them.
TITLES: dict[str, str] = {
    "bptt": "BPTT",
    "rtrl": "RTRL",
    "snap": "SnAp",
    "snap_topk": "SnAp top-k",
    "rflo": "RFLO",
    "uoro": "UORO",
    "kf_rtrl": "KF-RTRL",
    "ok": "OK",
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
