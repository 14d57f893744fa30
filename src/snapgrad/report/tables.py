"""The tables of a report, as plain text cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from snapgrad.algorithms import registry
from snapgrad.costs import costs
from snapgrad.report.collect import Collected
from snapgrad.runs import build
from snapgrad.runs.label import network
from snapgrad.runs.options import CharsOptions, Options

HEADINGS = {
    "level": "L reached",
    "bits": "bits / character",
    "error": "squared error",
    "valid_bits": "bits / character, validation",
}
HISTORY = 32  # steps, where sequences have no one length
MEANING = "J is the influence of every parameter on the state of the network."


class Table(NamedTuple):
    """A heading, what it needs to be understood, and cells of text; the first column is names, the others numbers."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def results(collected: Collected) -> Table:
    """How every series ended, the best first."""
    metric = collected.metric
    rows: list[tuple[str, ...]] = []
    for one in collected.series:
        statuses = {run.status for run in one.runs} - {"finished"}
        rows.append(
            (
                one.name + (f" ({', '.join(sorted(statuses))})" if statuses else ""),
                str(len(one.runs)),
                ends(one.finals(metric), metric),
                f"{one.mean_of('tokens'):,.0f}",
                f"{one.mean_of('updates'):,.0f}",
                f"{one.mean_of('seconds'):,.1f}",
                f"{one.mean_of('tokens') / one.mean_of('seconds'):,.0f}",
            )
        )
    columns = ("algorithm", "seeds", HEADINGS[metric], "tokens", "updates", "seconds", "tokens / s")
    note = (
        "Mean over the seeds, with the standard deviation where there are several. "
        "Seconds are of training alone, without compilation."
    )
    return Table("Results", note, columns, rows)


def ends(values: np.ndarray, metric: str) -> str:
    """How seeds ended, in the digits of the metric."""
    return spread(values, 1 if metric == "level" else 3)


def spread(values: np.ndarray, digits: int) -> str:
    """Mean and sample standard deviation, as people write them."""
    if len(values) == 1:
        return f"{values[0]:.{0 if digits == 1 else digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def times(ratio: float) -> str:
    """A ratio, in three digits or as a whole number."""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def cost(options: Options, orders: Sequence[int]) -> Table:
    """What each algorithm needs on the run's network, counted, with SnAp of each of the orders."""
    cell, _, params = build.network(options)
    crop = build.CROP if isinstance(options, CharsOptions) and not options.continuous else HISTORY
    window = getattr(options, "length", None) or crop
    rows: dict[str, tuple[str, ...]] = {}
    kept = []
    for order in orders:
        found = costs(cell, params.cell, order=order, batch=options.batch, window=window)
        kept.append(f"SnAp-{order} keeps {found.kept:,} of {found.states * found.params:,} entries of J.")
        for name, one in found.methods.items():
            ratios = times(found.vs_bptt[name]), times(found.vs_rtrl[name])
            rows[name] = (_title(name), f"{one.memory / 1e6:,.2f}", f"{one.flops / 1e6:,.2f}", *ratios)
    note = f"Counted from the patterns, for a batch of {options.batch}, a history of {window} steps where one is kept, "
    columns = ("algorithm", "memory, MB", "Mflop / step", "flops / BPTT's", "flops / RTRL's")
    title = f"Memory and cost: {network(options)}"
    return Table(title, " ".join([f"{note}without the readout.", MEANING, *kept]), columns, list(rows.values()))


def _title(method: str) -> str:
    named, *form = method.split(" ")  # such as "snap-2 episodic"
    name, *order = named.split("-")
    return " ".join(["-".join([registry.TITLES[name], *order]), *form])
