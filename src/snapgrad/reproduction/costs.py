"""Tables 1 and 3 of the paper: counts on the paper's networks, and how time and memory grow, measured.

Counts are structural and exact. Times are medians of a step, bytes what XLA allocates. Beside them, on small networks,
how far the gradient of SnAp-n is from the exact one, which is RTRL's.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import snapgrad as sg
from snapgrad.bench.programs import INPUTS, Network, loss_without_readout, network
from snapgrad.bench.timing import Repeated, medians
from snapgrad.cells.registry import CELLS
from snapgrad.report.tables import Table
from snapgrad.reproduction import growth
from snapgrad.reproduction.claims import Said, unmeasured, verdict
from snapgrad.reproduction.growth import Point
from snapgrad.reproduction.measurements import Found
from snapgrad.sparsity.reach import influence_blocks
from snapgrad.sweep.experiment import Experiment, Size

ORDERS = (2, 3)
EXPONENT, SHARE = 0.5, 0.1  # how far from the paper's figure, growth or count, still counts as the same
ROUNDING = 1e-5  # of float32: how far apart two gradients may be that are the same
SOURCES = {"growth": "table 1", "counts": "table 3", "cheap": "abstract", "exact": "abstract"}
COUNTED = {"BPTT": "bptt", "UORO": "uoro", "SnAp-1": "snap-1", "SnAp-2": "snap-2", "RTRL": "rtrl"}


def measure(experiment: Experiment, size: Size, found: Found) -> Iterator[Found]:
    """Counts, then measures."""
    settings = experiment.content[size]
    counts = found.get("networks")
    if counts is None:
        print(f"{experiment.name}-{size}: counting", file=sys.stderr)
        counts = {name: _count(experiment.content["networks"][name], settings) for name in settings["networks"]}
        yield {"networks": counts}
    if "growth" in found:
        return
    print(f"{experiment.name}-{size}: measuring", file=sys.stderr)
    gradients = {name: _distances(name, **settings["gradients"]) for name in CELLS}
    yield {
        "networks": counts, "gradients": gradients, "growth": [asdict(point) for point in _growth(settings)]
    }  # fmt: skip


def _count(given: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A column of table 3."""
    cell = CELLS[given["cell"]](INPUTS, given["units"])
    params = cell.init(jax.random.key(0), sparsity=given["sparsity"])
    found: dict[str, Any] = {"printed": given["printed"], "exact from order": _exact_from(cell.jacobians(params))}
    for order in (1, *ORDERS):
        counts = sg.costs(cell, params, order=order, batch=settings["batch"], window=settings["window"])
        found[f"snap-{order}"] = {
            "sparsity": 100 * counts.sparsity,
            "by the paper's formula": counts.paper_vs_bptt,
            "vs BPTT": counts.vs_bptt[f"snap-{order}"],
            "vs RTRL": counts.vs_rtrl[f"snap-{order}"],
        }
    return found


def _exact_from(jacobians: Any) -> int:
    """The smallest n at which SnAp-n keeps everything that RTRL has."""
    everything = influence_blocks(jacobians.groups, jacobians.dynamics, None).kept
    orders = itertools.count(1)
    return next(n for n in orders if influence_blocks(jacobians.groups, jacobians.dynamics, n).kept == everything)


def _distances(name: str, units: int, sparsity: float, steps: int) -> list[float]:
    """How far the gradient of SnAp-1, SnAp-2, ... is from the exact one, of its norm, until all of J is kept.

    The exact one is that of BPTT over the whole sequence, which shares no code with them.
    """
    cell = CELLS[name](INPUTS, units)
    params = sg.Params(cell=cell.init(jax.random.key(0), sparsity=sparsity), readout=())
    xs = jax.random.normal(jax.random.key(1), (steps, 1, INPUTS))
    targets = jax.random.normal(jax.random.key(2), (steps, 1, units))

    def gradient(algorithm: sg.Algorithm) -> np.ndarray:
        grads = algorithm.grad(params, algorithm.init(params, 1), xs, targets)[0].grads
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)])

    exact = gradient(sg.bptt(cell, loss_without_readout))
    orders = range(1, _exact_from(cell.jacobians(params.cell)) + 1)
    found = (gradient(sg.snap(cell, loss_without_readout, order=order)) for order in orders)
    return [float(np.linalg.norm(one - exact) / np.linalg.norm(exact)) for one in found]


def _growth(settings: dict[str, Any]) -> Iterator[Point]:
    at, window = settings["at"], settings["window"]
    for units in settings["units"]:
        yield from _points("units", units, units, at["density"], window, settings["batch"])
    for density in settings["density"]:
        yield from _points("density", density, at["units"], density, window, settings["batch"])
    for steps in settings["steps"]:
        yield from _points("steps", steps, at["units"], at["density"], steps, settings["batch"], ("BPTT", "SnAp-1"))


def _points(
    axis: str, value: float, units: int, density: float, steps: int, batch: int, methods: tuple[str, ...] = ()
) -> Iterator[Point]:
    net = network("Vanilla", units, 1 - density)
    chosen = {name: COUNTED[name] for name in methods or COUNTED}
    programs = {name: _program(net, name, steps, batch) for name in chosen}
    seconds = medians({name: program for name, (program, _) in programs.items()})
    for name, counted in chosen.items():
        order = int(counted[-1]) if counted[-1].isdigit() else 1
        cost = sg.costs(net.cell, net.params.cell, order=order, batch=batch, window=steps).methods[counted]
        window = steps if name == "BPTT" else 1
        yield Point(axis, value, name, cost.flops, cost.memory, seconds[name] / window, programs[name][1])


def _program(net: Network, method: str, steps: int, batch: int) -> tuple[Any, int]:
    """A window of BPTT, or one step of another method, and the bytes it needs."""
    make: dict[str, Callable[..., sg.Algorithm]] = {
        "BPTT": sg.bptt,
        "UORO": sg.uoro,
        "SnAp-1": lambda *args: sg.snap(*args, order=1),
        "SnAp-2": lambda *args: sg.snap(*args, order=2),
        "RTRL": sg.rtrl,
    }
    algorithm = make[method](net.cell, loss_without_readout)
    window = steps if method == "BPTT" else 1
    xs = jax.random.normal(jax.random.key(3), (window, batch, INPUTS))
    targets = jnp.ones((window, batch, net.cell.units))

    def step(carry: Any) -> Any:
        state, total = carry
        gradient, state = algorithm.grad(net.params, state, xs, targets)
        return state, jax.tree.map(jnp.add, total, gradient.grads)

    state = algorithm.init(net.params, batch, key=jax.random.key(4))
    carry = jax.tree.map(jnp.copy, (state, jax.tree.map(jnp.zeros_like, net.params)))
    analysis: Any = jax.jit(step, donate_argnums=0).lower(carry).compile().memory_analysis()
    return Repeated(step, carry), int(analysis.argument_size_in_bytes + analysis.temp_size_in_bytes)


# ---- the page


def said(experiment: Experiment, found: Found | None) -> list[Said]:
    """What the paper says of costs, held against what was counted; the tables have what was measured."""
    words = experiment.content["words"]
    if found is None:
        return [unmeasured(words[name], source) for name, source in SOURCES.items()]
    pairs = [pair for row in growth.exponents(found) for pair in row.pairs]
    grown = [abs(counted - paper) <= EXPONENT for paper, counted in pairs]
    printed = [
        abs(ours - theirs) <= SHARE * theirs
        for counts in found["networks"].values()
        for ours, theirs in (
            (100 - counts[f"snap-{order}"]["sparsity"], 100 - counts["printed"][place])
            for place, order in enumerate(ORDERS)
        )
    ]
    first = [counts["snap-1"]["vs BPTT"] for counts in found["networks"].values()]
    cheap = [ratio <= 1 + SHARE for ratio in first]
    orders = [counts["exact from order"] for counts in found["networks"].values()]
    last = [distances[-1] for distances in found["gradients"].values()]
    evidence = {
        "growth": f"{sum(grown)} of {len(grown)} exponents, counted, are within {EXPONENT} of the paper's",
        "counts": f"{sum(printed)} of {len(printed)} densities of J, from which the flops follow, counted, are within "
        f"{SHARE:.0%} of the printed ones",
        "cheap": f"counted: {min(first):.2f} to {max(first):.2f} times BPTT's flops, on {sum(cheap)} of {len(cheap)} "
        f"networks no more than {1 + SHARE:g} times",
        "exact": f"counted: all of J is kept by SnAp-{max(orders)} on every network, on some by SnAp-{min(orders)}; "
        f"measured, on smaller ones: the gradient is then RTRL's but for {max(last):.0e} of it",
    }
    held = {"growth": grown, "counts": printed, "cheap": cheap, "exact": [distance <= ROUNDING for distance in last]}
    return [Said(words[name], SOURCES[name], verdict(held[name]), evidence[name]) for name in SOURCES]


def counts_table(experiment: Experiment, found: Found) -> Table:
    """Table 3: the paper's figures beside ours."""
    rows = []
    for name, counts in found["networks"].items():
        printed, first = counts["printed"], counts["snap-1"]
        once = f"{experiment.content['snap_1'][experiment.content['networks'][name]['cell']]:g}"  # of BPTT's flops
        rows.append((f"{name}, SnAp-1", f"{first['sparsity']:.1f}", "", "", once, f"{first['vs BPTT']:.3g}", "", ""))
        for place, order in enumerate(ORDERS):
            ours = counts[f"snap-{order}"]
            formula, all_counted = ours["by the paper's formula"], ours["vs BPTT"]
            cells = (f"{ours['sparsity']:.1f}", f"{printed[place]:g}", f"{formula:,.0f}", f"{printed[2 + place]:,g}")
            of_rtrl = (f"{ours['vs RTRL']:.2g}", f"{printed[4]:g}") if order == 2 else ("", "")
            rows.append((f"{name}, SnAp-{order}", *cells, f"{all_counted:,.3g}", *of_rtrl))
    columns = (
        "network", "J sparsity, %: counted", "printed", "flops / BPTT's, by the paper's formula: counted", "printed",
        "flops / BPTT's, all counted", "flops / RTRL's: counted", "printed",
    )  # fmt: skip
    return Table("Table 3", "", columns, rows)


def gradients_table(found: Found) -> Table:
    """How far gradients are from the exact one, by order."""
    longest = max(map(len, found["gradients"].values()))
    rows = [
        (name, *(f"{distance:.2g}" for distance in distances), *[""] * (longest - len(distances)))
        for name, distances in found["gradients"].items()
    ]
    title = "Relative distance of SnAp-n's gradient from the exact one, RTRL's"
    return Table(title, "", ("cell", *(f"n = {order}" for order in range(1, longest + 1))), rows)
