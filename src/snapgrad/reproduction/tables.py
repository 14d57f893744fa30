"""Tables of the experiments that train: how runs ended, by axis or by the clock, and what a claim rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snapgrad.report.tables import HEADINGS, Table, ends
from snapgrad.reproduction.claims import Finding
from snapgrad.reproduction.measured import Measured
from snapgrad.sweep.experiment import Experiment

MORE_TO_COME = " †"
NOTE = "† Not everything has been run yet: seeds, or learning rates to choose from."


def results(experiment: Experiment, measured: Sequence[Measured]) -> list[Table]:
    """How the runs of an experiment ended, in the form that its figure has."""
    figure = experiment.content.get("figure")
    if figure == "ends":
        return [_by_axis(measured, experiment.metric, *experiment.content["axes"])]
    every = _every(experiment, measured)
    return [every, _by_clock(measured)] if figure == "seconds" else [every]


def comparisons(finding: Finding, metric: str) -> Table:
    """What a finding rests on."""
    of = finding.claim.after
    # The tokens go without saying where both sides have had no more.
    said = of == "seconds" or any(c.amount < max(c.better.tokens, c.than.tokens) for c in finding.comparisons)
    rows: list[tuple[str, ...]] = []
    for c in finding.comparisons:
        both = (
            f"{one.method}: {_ends(one, one.after(metric, c.amount, of), metric)}{_mark(one)}"
            for one in (c.better, c.than)
        )
        amount = (f"{c.amount:,.1f}" if of == "seconds" else f"{c.amount:,.0f}",) if said else ()
        rows.append((c.network, *amount, *both, "yes" if c.holds else "no"))
    return Table("", "", ("network", *([f"after {of}"] if said else []), "", "", "holds"), rows)


def _every(experiment: Experiment, measured: Sequence[Measured]) -> Table:
    """A row for every series."""
    metric = experiment.metric
    axes = list(dict.fromkeys(name for one in measured for name in one.axes))
    sizes = experiment.content.get("sizes")
    rows = []
    for one in measured:
        speed = np.mean([run.tokens_per_second for run in one.whole])
        updates = np.mean([run.final["updates"] for run in one.whole])
        seeds = f"{len(one.runs)}" + (f" of {one.wanted}" if len(one.runs) < one.wanted else "")
        values = (_value(one.axes.get(name)) for name in axes)
        counts = (seeds, f"{one.tokens:,.0f}", f"{updates:,.0f}", f"{speed:,.0f}")
        printed = (f"{sizes[one.method]['printed']:.2f}",) if sizes else ()
        rows.append((f"{one.network}: {one.method}", *values, end(one, metric), *counts, *printed))
    heads = (name.replace("_", " ") for name in axes)
    columns = ("network and method", *heads, HEADINGS[metric], "seeds", "tokens", "updates", "tokens / s")
    return Table("", "", (*columns, "printed") if sizes else columns, rows)


def _by_axis(measured: Sequence[Measured], metric: str, axis: str, lines: str) -> Table:
    """A row for each method and value of `lines`, a column for each value of `axis`."""
    columns = list(dict.fromkeys(one.axes[axis] for one in measured))
    cells = {(one.method, one.axes[lines], one.axes[axis]): end(one, metric) for one in measured}
    rows = [
        (method, _value(value), *(cells.get((method, value, column), "") for column in columns))
        for method, value in dict.fromkeys((one.method, one.axes[lines]) for one in measured)
    ]
    heads = (f"{axis.replace('_', ' ')} {_value(column)}" for column in columns)
    return Table("", "", (f"{HEADINGS[metric]} by", lines.replace("_", " "), *heads), rows)


def power(value: float) -> str:
    """A number, by its power of ten if that is a whole or a half: 10^-2.5."""
    exponent = 2 * np.log10(value)
    return f"10^{round(exponent) / 2:g}" if abs(exponent - round(exponent)) < 1e-6 else f"{value:.2g}"


def _by_clock(measured: Sequence[Measured]) -> Table:
    """A row for every series: its seconds, and those until the highest level that all methods reach on its network."""
    rows = []
    for network in dict.fromkeys(one.network for one in measured):
        alike = [one for one in measured if one.network == network]
        ended = [one for one in alike if one.diverged < len(one.runs)]
        level = min((run.final["level"] for one in ended for run in one.whole), default=np.nan)
        base = next((one.seconds for one in ended if one.method == "BPTT"), np.nan)
        rows += [(f"{network}: {one.method}", "diverged", "", "", "") for one in alike if one not in ended]
        for one in ended:
            ratio = "" if np.isnan(base) else f"{one.seconds / base:.2f}"
            waited = f"{one.until(level):,.1f}"
            rows.append((f"{network}: {one.method}", f"{one.seconds:,.0f}", ratio, f"{level:.0f}", waited))
    heads = ("network and method", "seconds in all", "of BPTT's", "L that all methods reach", "seconds until it")
    return Table("", "", heads, rows)


def end(one: Measured, metric: str) -> str:
    """How a series ended, with a mark where something is missing."""
    return _ends(one, one.finals(metric), metric) + _mark(one)


def _mark(one: Measured) -> str:
    return "" if one.complete else MORE_TO_COME


def _ends(one: Measured, values: np.ndarray, metric: str) -> str:
    """Mean and spread of the seeds that did not diverge, and how many did."""
    whole = values[np.isfinite(values)]
    if not one.diverged or len(whole) == len(values):
        return ends(values, metric)
    apart = f"{one.diverged} of {len(values)} diverged"
    return f"{ends(whole, metric)}, {apart}" if len(whole) else apart


def _value(value: Any) -> str:
    return "" if value is None else power(value) if isinstance(value, float) else str(value)
