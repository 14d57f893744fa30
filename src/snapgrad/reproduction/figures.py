"""Figures of the experiments that train: learning curves in panels, ends against an axis, seconds against tokens."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from snapgrad.report.curves import NAMES, X, draw
from snapgrad.report.style import COLOURS
from snapgrad.reproduction.measured import Measured
from snapgrad.reproduction.tables import power

WIDTH = 28  # letters of a panel's title on one line
FULL_UNROLL = ", full unroll"
VARIANTS = ("-", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))  # lines of methods that share a colour
AXES = {"update_every": "steps from update to update"}
RULES = {"Fixed pattern": "#222222", "SET": "#33bbee", "Probe": "#cc3377"}  # by which patterns change


def panels(measured: Sequence[Measured], metric: str, columns: int = 3, against: str = "tokens") -> Any:
    """One panel a network, one line a method; dashed where weights are updated at the end of a sequence only."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

    networks = list(dict.fromkeys(one.network for one in measured))
    columns = min(columns, len(networks))
    rows = -(-len(networks) // columns)
    figure = Figure(figsize=(1.6 + 2.9 * columns, 0.9 + 2.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=metric == "level")
    for axes in grid.ravel()[len(networks) :]:
        axes.set_visible(False)
    methods = list(dict.fromkeys(one.method for one in measured))
    drawn: dict[str, Any] = {}
    for axes, network in zip(grid.ravel(), networks, strict=False):
        for one in (one for one in measured if one.network == network):
            line = draw(axes, one.curve(metric, against), metric, linewidth=1.6, **look(one.method, methods))
            drawn.setdefault(one.method, line)
        axes.set_title(textwrap.fill(network, WIDTH))
        axes.grid(True)
        if against == "tokens":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.set_xlim(left=0)
        else:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())  # they would overlap
        if metric == "level":
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            axes.set_ylim(top=min(axes.get_ylim()[1], _ceiling(measured, metric)))
    if metric == "level":
        grid[0, 0].set_ylim(bottom=0)  # of all; set earlier, it would end the search for the top
    figure.supxlabel(X[against])
    figure.supylabel(NAMES[metric])
    figure.legend(list(drawn.values()), list(drawn), loc="outside right upper")
    return figure


def ends_against(measured: Sequence[Measured], metric: str, axis: str, lines: str) -> Any:
    """One panel a method: how runs end against the values of one axis, a line for each value of another."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    methods = list(dict.fromkeys(one.method for one in measured))
    figure = Figure(figsize=(1.8 + 2.9 * len(methods), 3.4), layout="constrained")
    values = list(dict.fromkeys(one.axes[axis] for one in measured))
    shades = list(dict.fromkeys(one.axes[lines] for one in measured))
    grid = figure.subplots(1, len(methods), squeeze=False, sharey=True)[0]
    for axes, method in zip(grid, methods, strict=True):
        base = look(method, methods)["color"]
        for number, shade in enumerate(shades):
            alike = [one for one in measured if one.method == method and one.axes[lines] == shade]
            at = [values.index(one.axes[axis]) for one in alike]
            ends = [_finite(one.finals(metric)) for one in alike]
            axes.errorbar(
                at,
                [end.mean() for end in ends],
                yerr=[end.std(ddof=1) if len(end) > 1 else 0.0 for end in ends],
                color=base,
                alpha=1 - 0.75 * number / max(1, len(shades) - 1),
                marker="osD^v"[number % 5],
                label=f"{lines.replace('_', ' ')} {power(shade)}",
                linewidth=1.4,
                capsize=2,
            )
        axes.set_xticks(range(len(values)), [str(value) for value in values])
        axes.set(title=method, xlabel=AXES.get(axis, axis.replace("_", " ")))
        axes.margins(x=0.1)
        axes.grid(True)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=8)
    grid[0].set_ylabel(NAMES[metric])
    return figure


def sizes(measured: Sequence[Measured], metric: str, times: dict[str, float]) -> Any:
    """How pruned networks end against their size, at a constant number of parameters; a line for a dense network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    base = min(times[one.method] for one in measured)
    dense = [one for one in measured if one.method.endswith("dense") and times[one.method] > base]
    pruned = sorted((one for one in measured if one not in dense), key=lambda one: times[one.method])
    ends = [_finite(one.finals(metric)) for one in pruned]
    axes.errorbar(
        range(len(pruned)),
        [end.mean() for end in ends],
        yerr=[end.std(ddof=1) if len(end) > 1 else 0.0 for end in ends],
        color=COLOURS["BPTT"],
        marker="o",
        capsize=3,
        label="pruned to the base network's parameters",
    )
    for one in dense:
        larger = times[one.method] ** 2
        end = _finite(one.finals(metric))
        axes.axhline(end.mean(), color=COLOURS["RTRL"], linestyle="--", label=f"{one.method}: {larger:g}x parameters")
    axes.set_xticks(
        range(len(pruned)), [f"{times[one.method]:g}x\n{one.method.replace(', ', chr(10))}" for one in pruned]
    )
    axes.set(ylabel=NAMES[metric])
    axes.margins(x=0.08)
    axes.grid(True)
    figure.legend(loc="outside upper left")
    return figure


def look(method: str, methods: Sequence[str]) -> dict[str, Any]:
    """Colour and line of a method among those that are shown."""
    if _whole(method):
        return {"color": _colour(method), "linestyle": (0, (4, 1.5))}
    alike = [other for other in methods if not _whole(other) and _colour(other) == _colour(method)]
    return {"color": _colour(method), "linestyle": VARIANTS[alike.index(method) % len(VARIANTS)]}


def _colour(method: str) -> str:
    return (COLOURS | RULES)[method.removesuffix(FULL_UNROLL).partition(",")[0]]


def _whole(method: str) -> bool:
    """Whether it updates the weights at the end of a sequence only."""
    return method.endswith(FULL_UNROLL) or method == "BPTT"


def _ceiling(measured: Sequence[Measured], metric: str) -> float:
    """Early bits are far above everything that is compared."""
    ends = _finite(np.concatenate([one.finals(metric) for one in measured]))
    return float(ends.max() + 1.5 * max(0.1, ends.max() - ends.min()))


def _finite(ends: np.ndarray) -> np.ndarray:
    """Those of the seeds that did not diverge; no number if all did."""
    kept = ends[np.isfinite(ends)]
    return kept if len(kept) else np.array([np.nan])
