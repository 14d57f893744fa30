"""How long a run may take: good enough to start the longest first and to guess the time left."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from snapgrad.algorithms.registry import takes
from snapgrad.costs import costs
from snapgrad.runs.build import READOUTS, SIZES, network
from snapgrad.runs.options import Options

# Of one core with AVX-512, from runs that were measured, rounded: they decide about nothing but order.
DENSE_FLOPS_A_SECOND = 1e11  # of the readout
SPARSE_FLOPS_A_SECOND = 2e10  # of the recurrent part; the fuller J is, the longer its rows, the faster
SECONDS_A_STEP = 5e-4


def seconds(options: Options) -> float:
    """Of training, on one core, from the flops that are counted."""
    widths = (options.units, *READOUTS[options.readout], SIZES[options.task][1])
    readout = 6 * sum(a * b for a, b in itertools.pairwise(widths)) * options.batch
    steps = options.tokens / options.batch
    if options.prune is not None:  # most of its time it is nearly as sparse as it will be
        options = dataclasses.replace(options, sparsity=options.prune, prune=None)
    counted = _costs(options)
    recurrent = _flops(counted.methods, options) / (SPARSE_FLOPS_A_SECOND * (3 - 2 * counted.sparsity))
    return steps * (recurrent + readout / DENSE_FLOPS_A_SECOND + SECONDS_A_STEP)


def _flops(methods: dict[str, Any], options: Options) -> float:
    name: str = options.algorithm
    whole = takes(name, "episodic") and options.update_steps is None
    if takes(name, "order"):
        name = f"{name}-{options.snap_order}"
    name += " episodic" if whole else ""
    return options.batch * (methods[name] if name in methods else methods["bptt"]).flops


_counted: dict[tuple[Any, ...], Any] = {}


def _costs(options: Options) -> Any:
    order = options.snap_order if takes(options.algorithm, "order") else 1
    # The counts hardly depend on the seed: one network stands for all.
    shape = options.task, options.cell, options.units, options.layers, options.sparsity, options.sparse_inputs
    key = *shape, order, options.rank
    if key not in _counted:
        cell, _, params = network(options)
        _counted[key] = costs(cell, params.cell, order=order, rank=options.rank or 1)
    return _counted[key]
