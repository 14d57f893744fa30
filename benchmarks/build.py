"""How long it takes to build a network's patterns, reach and native plan, before anything is compiled.

    python benchmarks/build.py

The first line is a cold start: it also loads the sparsity detection.
"""

from __future__ import annotations

import itertools
import time

import jax

import snapgrad as sg
from snapgrad.kernels import binding
from snapgrad.sparsity.reach import influence_blocks

NETWORKS = [
    ("GRU", 4096, 0.999, 2),
    ("GRU", 4096, 0.999, 2),
    ("LSTM", 4096, 0.999, 2),
    ("GRU", 512, 0.984375, 2),
    ("GRU", 512, 0.984375, 3),
    ("GRU", 128, 0.75, 2),
]


def main() -> None:
    print(f"{'':28}{'kept entries of J':>20}{'patterns':>11}{'reach':>9}{'plan':>9}")
    for number, (name, units, sparsity, order) in enumerate(NETWORKS):
        cell = getattr(sg, name)(32, units)
        params = cell.init(jax.random.key(number), sparsity=sparsity)
        times = [time.perf_counter()]
        jacobians = cell.jacobians(params)
        times.append(time.perf_counter())
        blocks = influence_blocks(jacobians.groups, jacobians.dynamics, order)
        times.append(time.perf_counter())
        binding.blocks_plan(blocks)
        times.append(time.perf_counter())
        patterns, reach, plan = (end - start for start, end in itertools.pairwise(times))
        label = f"{name} {units}, {sparsity:.1%}, SnAp-{order}"
        print(f"{label:28}{blocks.kept:>20,}{patterns:>10.2f}s{reach:>8.2f}s{plan:>8.2f}s")


if __name__ == "__main__":
    main()
