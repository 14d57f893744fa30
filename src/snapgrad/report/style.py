"""One look for all figures: a colour for each algorithm, a line for each way of updating."""

from __future__ import annotations

from typing import Any

from snapgrad.runs.label import algorithm
from snapgrad.runs.options import Options

# By an algorithm's title; told apart by people who see few colours too (after Paul Tol's schemes).
COLOURS = {
    "SnAp-1": "#ee7733",
    "SnAp-2": "#cc3377",
    "SnAp-3": "#771155",
    "SnAp": "#aa4499",
    "SnAp top-k": "#882255",
    "Truncated BPTT": "#888888",
    "BPTT": "#222222",
    "RTRL": "#0077bb",
    "RFLO": "#228833",
    "UORO": "#33bbee",
    "KF-RTRL": "#009988",
    "OK": "#332288",
    "Frozen": "#bbbb33",
}
INK = "#222222"
PARAMETERS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "snapgrad",  # the same figure gives the same file
}


def colour(options: Options) -> str:
    """The colour of a run's algorithm; orders of SnAp beyond the third share one."""
    title, _, _ = algorithm(options).partition(",")
    return COLOURS.get(title) or COLOURS[title.partition("-")[0]]


def line(options: Options) -> Any:
    """Solid for an update at every step, dashed for whole sequences, dotted between."""
    return {1: "-", None: (0, (5, 2))}.get(options.update_steps, (0, (1, 1.5)))
