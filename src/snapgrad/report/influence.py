"""Pictures of what SnAp keeps: how influence spreads (the paper's figure 1), and the pattern of J (figure 2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from snapgrad.report.style import COLOURS
from snapgrad.runs.build import network
from snapgrad.runs.options import Options
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks, influence_blocks

ORDERS = (1, 2, 3)
SHADES = ("#ffffff", COLOURS["SnAp-3"], COLOURS["SnAp-2"], COLOURS["SnAp-1"])  # kept by none .. by all


class Kept(NamedTuple):
    """The pattern of D, and what SnAp of each order keeps of J."""

    dynamics: Pattern
    by: dict[int, Blocks]


def kept_of(options: Options) -> Kept:
    """What is kept on the run's network, the very one that was trained."""
    cell, _, params = network(options)
    jacobians = cell.jacobians(params.cell)
    by = {order: influence_blocks(jacobians.groups, jacobians.dynamics, order) for order in ORDERS}
    return Kept(jacobians.dynamics, by)


def spreading(kept: Kept) -> Any:
    """The states on a circle; those that one group of parameters has reached after 1, 2 and 3 steps."""
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    blocks, states = kept.by, kept.by[1].states
    angle = 2 * np.pi * np.arange(states) / states
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    figure = Figure(figsize=(9, 3.3), layout="constrained")
    # A group in the middle of those of its kind, so that the picture is neither of the best nor of the worst.
    sizes = blocks[2].reach.mask().sum(axis=1)
    group = int(np.argsort(sizes, kind="stable")[len(sizes) // 2])
    for axes, order in zip(figure.subplots(1, len(ORDERS)), ORDERS, strict=True):
        reached = blocks[order].reach.mask()[group]
        before = blocks[order - 1].reach.mask()[group] if order > 1 else np.zeros(states, bool)
        ends = np.stack([kept.dynamics.cols, kept.dynamics.rows])  # [2, entries]: from, to
        new = before[ends[0]] & reached[ends[1]] & ~before[ends[1]]
        for lines, colour, alpha in (
            (~new, "#999999", min(0.1, 150 / kept.dynamics.nnz)),
            (new, COLOURS["SnAp-2"], 0.5),
        ):
            paths = place[ends[:, lines].T]  # [lines, 2, xy]
            axes.add_collection(
                LineCollection(list(paths), colors=colour, alpha=alpha, linewidths=0.5, rasterized=True)
            )
        colours = np.where(before, COLOURS["SnAp-1"], np.where(reached, COLOURS["SnAp-2"], "#dddddd"))
        axes.scatter(*place.T, c=list(colours), s=max(4, 900 / states), zorder=3, linewidths=0)
        axes.set(aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_title(f"within {order} step{'s' * (order > 1)}: {reached.sum()} of {states}", loc="center")
    return figure


def pattern(kept: Kept) -> Any:
    """D, and which states the parameters of each group reach: what SnAp-1, 2 and 3 keep of J."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    blocks, first = kept.by, kept.by[1]
    order = np.argsort([int(np.flatnonzero(row)[0]) for row in first.reach.mask()], kind="stable")  # by unit
    orders = np.sum([blocks[n].reach.mask()[order].T.astype(int) for n in ORDERS], axis=0)  # [states, groups]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, max(1.0, orders.shape[1] / orders.shape[0])))
    look: dict[str, Any] = {"interpolation": "nearest"}
    look["aspect"] = "equal" if orders.shape[1] < 4 * len(orders) else "auto"
    left.imshow(kept.dynamics.mask(), cmap=ListedColormap(["#ffffff", "#444444"]), vmin=0, vmax=1, **look)
    left.set(xlabel="state before", ylabel="state after")
    left.set_title(f"D, {kept.dynamics.density:.0%} of it")
    # 0: never kept; 1: SnAp-3 only; 2: SnAp-2 too; 3: all.
    colours = ListedColormap(list(SHADES))
    right.imshow(orders, cmap=colours, vmin=0, vmax=3, **look)
    right.set(xlabel="parameters, in groups that touch the same states at once", ylabel="state")
    right.set_title("J: the first order of SnAp that keeps an entry")
    handles = []
    for n, shade in zip(ORDERS, SHADES[:0:-1], strict=True):
        share = blocks[n].kept / (first.states * first.n_params)
        handles.append(Patch(facecolor=shade, label=f"SnAp-{n}: {share:.1%} of J"))
    handles.append(Patch(facecolor="#ffffff", edgecolor="#bbbbbb", label="none of them"))
    figure.legend(handles=handles, loc="outside lower right", ncols=4)
    for axes in (left, right):
        axes.spines[:].set_visible(True)
    return figure
