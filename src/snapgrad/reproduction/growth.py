"""Table 1 of the paper: how a step's time and memory grow with units, density and steps, beside its formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from snapgrad.report.tables import Table
from snapgrad.reproduction.measurements import Found


class _Size(NamedTuple):
    """What table 1 knows of a network."""

    k: float  # units
    d: float  # density
    T: float  # steps

    @property
    def p(self) -> float:
        """Recurrent parameters, as if the network were dense."""
        return self.k**2


class _Row(NamedTuple):
    """A row of table 1."""

    time: Callable[[_Size], float]
    memory: Callable[[_Size], float]
    axes: tuple[str, ...] = ("units", "density", "steps")  # along which it says something of sparse networks


TABLE_1 = {
    "BPTT": _Row(lambda n: n.d * (n.k**2 + n.p), lambda n: n.T * n.k + n.d * n.p),
    "UORO": _Row(lambda n: n.k**2 + n.p, lambda n: n.k + n.p, ("units",)),
    "SnAp-1": _Row(lambda n: n.d * (n.k**2 + n.p), lambda n: n.k + n.d * n.p),
    "SnAp-2": _Row(lambda n: n.d * (n.k**2 + n.d**2 * n.k**2 * n.p), lambda n: n.k + n.d**2 * n.k * n.p),
    "RTRL": _Row(lambda n: n.d * (n.k**2 + n.d * n.k**2 * n.p), lambda n: n.k + n.d * n.k * n.p),
}


@dataclass(frozen=True)
class Point:
    """One method on one network: what was varied, and what a step of a batch takes."""

    axis: str  # "units", "density" or "steps"
    value: float
    method: str
    flops: float  # a step, counted
    counted: float  # bytes, counted
    seconds: float  # a step, measured
    bytes: float  # of parameters, carried state and the program's own temporaries, as XLA allocates them


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """How y grows with x: the slope, both in logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


class Growth(NamedTuple):
    """The exponents of one method along one axis."""

    method: str
    axis: str
    time: float  # the paper's
    memory: float
    flops: float  # counted
    counted: float  # bytes
    seconds: float  # measured
    bytes: float

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        return (self.time, self.flops), (self.memory, self.counted)


def exponents(found: Found) -> list[Growth]:
    """A row for every method and axis along which it was measured."""
    settings = found["asked"]["settings"]
    middle = _Size(settings["at"]["units"], settings["at"]["density"], settings["window"])
    fields = {"units": "k", "density": "d", "steps": "T"}
    points = [Point(**point) for point in found["growth"]]
    rows = []
    for method, paper in TABLE_1.items():
        for axis in paper.axes:
            alike = [point for point in points if point.method == method and point.axis == axis]
            if not alike:
                continue
            values = [point.value for point in alike]
            sizes = [middle._replace(**{fields[axis]: value}) for value in values]
            printed = (exponent(values, [formula(size) for size in sizes]) for formula in (paper.time, paper.memory))
            measured = ([getattr(point, name) for point in alike] for name in ("flops", "counted", "seconds", "bytes"))
            rows.append(Growth(method, axis, *printed, *(exponent(values, one) for one in measured)))
    return rows


def table(found: Found) -> Table:
    """Table 1: exponents of growth, those of the paper's formulas beside what was counted and measured."""
    rows = []
    for row in exponents(found):
        shown = (row.time, row.flops, row.seconds, row.memory, row.counted, row.bytes)
        rows.append((f"{row.method}, with {row.axis}", *(f"{_unsigned_zero(value):.1f}" for value in shown)))
    columns = (
        "method", "time a step: formula", "flops counted", "seconds measured", "memory: formula", "bytes counted",
        "bytes measured",
    )  # fmt: skip
    return Table("Table 1: exponents", "", columns, rows)


def _unsigned_zero(value: float) -> float:
    """Without the sign of what is shown as zero."""
    return value if abs(value) >= 0.05 else 0.0
