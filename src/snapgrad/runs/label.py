"""What a run is called: in file names, progress bars, legends and tables."""

from __future__ import annotations

from snapgrad.algorithms import registry
from snapgrad.runs import wiring
from snapgrad.runs.options import Options


def algorithm(options: Options) -> str:
    """The algorithm, such as SnAp-2."""
    return registry.title(options.algorithm, options.snap_order, options.update_steps)


def label(options: Options) -> str:
    """The algorithm, when it updates and how patterns change, such as "SnAp-2, every step, SET"."""
    steps, title, changes = options.update_steps, algorithm(options), wiring.title(options)
    if steps is None:
        title += ", whole sequences"
    elif not title.endswith(f"T = {steps}"):
        title += ", every step" if steps == 1 else f", every {steps} steps"
    return f"{title}, {changes}" if changes else title


def network(options: Options) -> str:
    """The network, such as "GRU 64, 75 % sparse", or "GRU 2 x 64" for two layers."""
    cell = {"vanilla": "Vanilla"}.get(options.cell, options.cell.upper())
    size = options.units if options.layers == 1 else f"{options.layers} x {options.units}"
    return f"{cell} {size}, " + (f"{100 * options.sparsity:.4g} % sparse" if options.sparsity else "dense")


def directory_name(options: Options) -> str:
    """A name for the run's directory, such as "copy-gru64-snap-2-1-seed0"."""
    order = f"-{options.snap_order}" if registry.takes(options.algorithm, "order") else ""
    layers = f"x{options.layers}" if options.layers > 1 else ""
    network = f"{options.task}-{options.cell}{options.units}{layers}"
    changes = "".join(f"-{word}" for word in (options.rewire, "pruned" if options.prune else None) if word)
    return f"{network}-{options.algorithm}{order}-{options.update_every}{changes}-seed{options.seed}"
