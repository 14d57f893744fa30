"""Dense or gathered product? Measures where `snapgrad.sparsity.matrix.DENSE_FROM_DENSITY` should lie.

For GRU-shaped recurrent matrices of several sizes and densities, prints the time of the gathered (sparse) product over
that of a dense one, each with its gradient, for a batch of 16 and windows of 1 and 32 steps. Above 1, dense is faster.

    python benchmarks/products.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from snapgrad.sparsity.masks import random_matrix, random_pattern

BATCH, REPEATS = 16, 7


def seconds(function: Any, *args: Any) -> float:
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ratio(units: int, density: float, steps: int) -> float:
    key = jax.random.key(0)
    matrix = random_matrix(key, random_pattern(key, (units, units), 1 - density, gates=3), jnp.float32)
    h = jax.random.normal(key, (BATCH, units))

    def objective(matrix: Any, h: jax.Array, dense: bool) -> jax.Array:
        ready = matrix.to_dense() if dense else matrix

        def step(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            v = jax.vmap(lambda h: ready @ h)(h)
            return jnp.tanh(v.reshape(BATCH, 3, units).sum(axis=1)), None

        return jnp.sum(jax.lax.scan(step, h, length=steps)[0])

    gradient = jax.jit(jax.grad(objective), static_argnums=2)
    return seconds(gradient, matrix, h, False) / seconds(gradient, matrix, h, True)


def main() -> None:
    densities = (0.001, 0.004, 0.016, 0.0625, 0.25)
    print("units  steps  " + "  ".join(f"{density:>8.2%}" for density in densities))
    for units in (128, 512, 1024, 2048):
        for steps in (1, 32):
            row = (ratio(units, density, steps) for density in densities)
            print(f"{units:>5}  {steps:>5}  " + "  ".join(f"{value:>8.2f}" for value in row), flush=True)


if __name__ == "__main__":
    main()
