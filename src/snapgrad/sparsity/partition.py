"""Blocks of J, split into parts of like cost: a block needs no other one, so each part can have its own device."""

from __future__ import annotations

import dataclasses
import heapq
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks


def block_costs(blocks: Blocks) -> NDArray[np.int64]:
    """What a step costs, in multiply-adds with D[R, R]; what a row and a column add is as in `BlocksPlan::cut`."""
    return (blocks.product_sizes() + 4 * blocks.heights + 8) * blocks.widths


@lru_cache(maxsize=32)
def assignment(blocks: Blocks, parts: int) -> NDArray[np.int64]:
    """The part of every group: the most expensive ones first, each to the part that has the least so far."""
    costs = block_costs(blocks)
    part_of = np.zeros(len(costs), np.int64)
    least = [(0, part) for part in range(parts)]
    for group in np.argsort(-costs, kind="stable"):
        cost, part = heapq.heappop(least)
        part_of[group] = part
        heapq.heappush(least, (cost + int(costs[group]), part))
    return part_of


@lru_cache(maxsize=32)
def partition(blocks: Blocks, parts: int) -> tuple[Blocks, ...]:
    """The blocks of each part. All groups keep their numbers; those of other parts reach nothing, and have no block."""
    if parts == 1:
        return (blocks,)
    part_of, reach = assignment(blocks, parts)[blocks.reach.rows], blocks.reach
    return tuple(
        dataclasses.replace(blocks, reach=Pattern(reach.rows[own], reach.cols[own], reach.shape))
        for own in (part_of == part for part in range(parts))
    )


def block_owners(blocks: Blocks, parts: int) -> NDArray[np.int64] | None:
    """The part that has the column of each parameter; None if there is one part only."""
    return None if parts == 1 else assignment(blocks, parts)[blocks.groups.of_param]
