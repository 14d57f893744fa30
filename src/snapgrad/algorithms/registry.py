"""The algorithms by name: the one place where a string stands for an algorithm (for command lines and test suites)."""

from __future__ import annotations

from collections.abc import Callable

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
