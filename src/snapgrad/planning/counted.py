"""The counts of one random pattern, where drawing it takes seconds; expectations elsewhere."""

from __future__ import annotations

import jax

from snapgrad.cells.registry import CELLS
from snapgrad.cells.unit_jacobians import UnitJacobians
from snapgrad.planning.expectations import Counts, Network, expected
from snapgrad.sparsity.masks import random_pattern
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import influence_blocks

# What is counted within about ten seconds and a GiB: entries within reach of all blocks, and parameters.
MOST_REACH, MOST_PARAMS = 1 << 20, 1 << 20


def counts(network: Network, order: int | None) -> tuple[Counts, bool]:
    """The counts, and whether they are of a pattern that was drawn."""
    mean = expected(network, order)
    if mean.blocks * mean.kept / mean.params > MOST_REACH or mean.params > MOST_PARAMS:
        return mean, False
    return counted(network, order), True


def counted(network: Network, order: int | None, seed: int = 0) -> Counts:
    """The counts of the patterns that `init` draws from this seed; no weight is given a value."""
    cell = CELLS[network.cell](network.inputs, network.units)
    keys = jax.random.split(jax.random.key(seed), 4)

    def pattern(key: jax.Array, width: int) -> Pattern:
        return random_pattern(key, (cell.units, width), network.sparsity, gates=cell.gates)

    recurrent, input = pattern(keys[0], cell.units), pattern(keys[2], cell.inputs)
    jacobians = UnitJacobians.of(cell, recurrent, input)
    blocks = influence_blocks(jacobians.groups, jacobians.dynamics, order)
    weights = recurrent.nnz + input.nnz
    return Counts(
        states=blocks.states,
        params=blocks.n_params,
        blocks=int((blocks.widths > 0).sum()),
        kept=blocks.kept,
        forward=2 * weights,
        influence=2 * int(blocks.product_sizes() @ blocks.widths) + 2 * blocks.kept,
        bptt=4 * weights + 2 * recurrent.nnz,
    )
