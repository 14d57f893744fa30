"""Learning curves: against tokens and against seconds, seeds as bands, the legend in the order of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snapgrad.report.collect import Series
from snapgrad.report.mean import FEW, Curve
from snapgrad.report.style import colour, line

NAMES = {
    "level": "length L that is copied",
    "bits": "bits per character, training",
    "error": "squared error, training",
    "valid_bits": "bits per character, validation",
    "density": "share of weights that exist",
    "churn": "share of weights exchanged or pruned between two records",
}
MARKS = "osD^vPX"
LONG = 34  # letters of a name, for a legend beside the figure
X = {"tokens": "tokens", "seconds": "seconds of training"}


def learning_curves(series: Sequence[Series], metric: str, against: str) -> Any:
    """One figure; `series` come best first."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = Figure(figsize=(9.2, 4.6), layout="constrained")
    axes = figure.subplots()
    drawn: list[str] = []
    for one in series:
        curve = one.curve(metric, against)
        look: dict[str, Any] = {"color": colour(one.options), "linestyle": line(one.options)}
        # Several of one colour are told apart by their marks.
        alike, few = drawn.count(look["color"]), len(curve.x) <= FEW
        drawn.append(look["color"])
        marks: dict[str, Any] = {}
        if few or alike:
            marks = {"marker": MARKS[alike % len(MARKS)], "markevery": 1 if few else len(curve.x) // 8}
        draw(axes, curve, metric, label=one.name, linewidth=1.8, markersize=5, **look, **marks)
    axes.set(xlabel=X[against], ylabel=NAMES[metric])
    if against == "tokens":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    if metric == "level":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if against == "seconds" and _ratio(series) > 20:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(left=0.8 * min(one.curve(metric, against).x[0] for one in series))
    axes.grid(True)
    seeds = {len(one.runs) for one in series}
    note = "" if seeds == {1} else f"; mean and range of {'/'.join(map(str, sorted(seeds)))} seeds"
    axes.set_title(f"{NAMES[metric][0].upper()}{NAMES[metric][1:]}, against {X[against]}{note}")
    beside = max(len(one.name) for one in series) <= LONG
    place: Any = "outside right upper" if beside else "outside lower left"
    figure.legend(*axes.get_legend_handles_labels(), loc=place, title="best first")
    return figure


def draw(axes: Any, curve: Curve, metric: str, **look: Any) -> Any:
    """One curve, with the range of its seeds as a band; returns its line."""
    steps: dict[str, Any] = {"drawstyle": "steps-post"} if metric == "level" else {}
    (drawn,) = axes.plot(curve.x, curve.mean, **steps, **look)
    if np.any(curve.high > curve.low):
        step = "post" if steps else None
        axes.fill_between(curve.x, curve.low, curve.high, step=step, color=drawn.get_color(), alpha=0.15, linewidth=0)
    return drawn


def _ratio(series: Sequence[Series]) -> float:
    """How much longer the longest takes than the shortest."""
    ends = [one.mean_of("seconds") for one in series]
    return max(ends) / min(ends)
