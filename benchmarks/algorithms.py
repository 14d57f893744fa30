"""Time a step of every algorithm as a multiple of BPTT's, in one run: sparse GRUs of the paper's sizes, batch 16.

    python benchmarks/algorithms.py

"online" has windows of one step, "window" windows of 32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import snapgrad as sg

BATCH, INPUTS, REPEATS = 16, 4, 7
SIZES = ((128, 0.75), (256, 0.9375), (512, 0.984375))


def loss(readout: jax.Array, h: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.sum((readout @ h - target) ** 2)


def milliseconds(algorithm: sg.Algorithm, params: sg.Params, steps: int) -> float:
    """Median time a step, over windows of `steps` steps."""
    key = jax.random.key(1)
    state = algorithm.init(params, batch_size=BATCH, key=key)
    window = jax.random.normal(key, (steps, BATCH, INPUTS)), jnp.zeros((steps, BATCH, INPUTS))
    jax.block_until_ready(algorithm.grad(params, state, *window))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(algorithm.grad(params, state, *window))
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times) / steps


def main() -> None:
    algorithms: dict[tuple[str, int], Callable[[Any, Any], sg.Algorithm]] = {
        ("rflo, online", 1): sg.rflo,
        ("uoro, online", 1): sg.uoro,
        ("snap-1, online", 1): lambda cell, loss: sg.snap(cell, loss, order=1),
        ("snap-2, online", 1): lambda cell, loss: sg.snap(cell, loss, order=2),
        ("snap-1 episodic, window", 32): lambda cell, loss: sg.snap(cell, loss, order=1, episodic=True),
        ("snap-2 episodic, window", 32): lambda cell, loss: sg.snap(cell, loss, order=2, episodic=True),
    }
    columns = {}
    for units, sparsity in SIZES:
        cell = sg.GRU(INPUTS, units)
        params = sg.Params(cell.init(jax.random.key(0), sparsity=sparsity), jnp.zeros((INPUTS, units)))
        bptt = {steps: milliseconds(sg.bptt(cell, loss), params, steps) for steps in (1, 32)}
        times = {name: milliseconds(make(cell, loss), params, name[1]) for name, make in algorithms.items()}
        columns[units] = [f"{bptt[1]:.2f} ms", f"{bptt[32]:.2f} ms"] + [
            f"{value / bptt[steps]:.1f}x" for (_, steps), value in times.items()
        ]
    rows = ["bptt, online (T = 1)", "bptt, window", *(name for name, _ in algorithms)]
    print(f"{'':26}" + "".join(f"{f'GRU {units}, {sparsity:.1%}':>16}" for units, sparsity in SIZES))
    for number, row in enumerate(rows):
        print(f"{row:26}" + "".join(f"{columns[units][number]:>16}" for units, _ in SIZES))


if __name__ == "__main__":
    main()
