"""The paper's Hinton diagram of the influence: a square an entry of J, coloured by the order of SnAp that keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from snapgrad.analysis import Influence

BACKGROUND = "#bbbbbb"
KINDS = (("SnAp-1", "#cc2222"), ("added by SnAp-2", "#2255cc"), ("dropped by both", "#ffffff"))  # by first order
CELL = 0.12  # inches
WIDTH = 88  # columns, at most, before the next line
FULL = 0.98  # of the magnitudes, the largest of them, is what a full square stands for; the few beyond are cut


def hinton(snapshots: Mapping[str, Influence], columns: Sequence[tuple[str, int]]) -> Any:
    """J [states, params] of each titled snapshot, in as many lines as it needs, all on one scale: area is magnitude.

    `columns` names consecutive parameters, such as ("recurrent", 48).
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    states, params = next(iter(snapshots.values())).J.shape
    lines = -(-params // WIDTH)
    width = -(-params // lines)
    size = CELL * width + 0.8, (CELL * states + 0.5) * lines * len(snapshots) + 0.5
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(snapshots) * lines, 1, squeeze=False).reshape(len(snapshots), lines)
    magnitudes = np.concatenate([np.abs(influence.J[influence.J != 0]) for influence in snapshots.values()])
    full = float(np.quantile(magnitudes, FULL)) if magnitudes.size else 1.0
    for of_snapshot, (title, influence) in zip(panels, snapshots.items(), strict=True):
        of_snapshot[0].set_title(title)
        for number, axes in enumerate(of_snapshot):
            first, last = number * width, min((number + 1) * width, params)
            _draw(axes, influence, slice(first, last), full)
            _name(axes, columns, first, last)
            axes.set(xlim=(first - 0.7, first + width - 0.3), ylim=(states - 0.3, -0.7), aspect="equal", yticks=[])
            axes.set_ylabel("state")
    handles = [Patch(facecolor=colour, edgecolor="#888888", label=label) for label, colour in KINDS]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(KINDS))
    return figure


def _draw(axes: Any, influence: Influence, part: slice, full: float) -> None:
    from matplotlib.collections import PolyCollection

    row, column = np.nonzero(influence.J[:, part])
    column += part.start
    half = 0.45 * np.sqrt(np.minimum(np.abs(influence.J[row, column]) / full, 1))
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    squares = np.stack([column, row], axis=1)[:, None, :] + half[:, None, None] * corners
    colours = [KINDS[min(order, len(KINDS)) - 1][1] for order in influence.first_order[row, column]]
    axes.set_facecolor(BACKGROUND)
    axes.add_collection(PolyCollection(list(squares), facecolors=colours, linewidths=0, rasterized=True))


def _name(axes: Any, columns: Sequence[tuple[str, int]], first: int, last: int) -> None:
    """Lines between the kinds of parameters, and the name of each kind under what is seen of it."""
    places, names, end = [], [], 0
    for name, count in columns:
        start, end = end, end + count
        if start > first and start < last:
            axes.axvline(start - 0.5, color="#666666", linewidth=0.8)
        if min(end, last) > max(start, first):
            places.append((max(start, first) + min(end, last) - 1) / 2)
            names.append(name)
    axes.set_xticks(places, names)
    axes.tick_params(length=0)
