"""Dense, gathered or native product? Measures where `DENSE_FROM_DENSITY` of both kernels should lie.

For GRU-shaped recurrent matrices of several sizes and densities, prints the time of the sparse product (gathered by
XLA, native) over that of a dense one, each with its gradient, for a batch of 16 and windows of 1 and 32 steps. Above 1,
dense is faster.

    python benchmarks/products.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from snapgrad.kernels.products import NativeMatrix
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


def ratios(units: int, density: float, steps: int) -> tuple[float, float]:
    key = jax.random.key(0)
    matrix = random_matrix(key, random_pattern(key, (units, units), 1 - density, gates=3), jnp.float32)
    h = jax.random.normal(key, (BATCH, units))

    forms = {
        "dense": lambda matrix: matrix.to_dense(),
        "gathered": lambda matrix: matrix,
        "native": lambda matrix: NativeMatrix(matrix.values, matrix.pattern),
    }

    def objective(matrix: Any, h: jax.Array, form: str) -> jax.Array:
        ready = forms[form](matrix)

        def step(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            v = jax.vmap(lambda h: ready @ h)(h)
            return jnp.tanh(v.reshape(BATCH, 3, units).sum(axis=1)), None

        return jnp.sum(jax.lax.scan(step, h, length=steps)[0])

    gradient = jax.jit(jax.grad(objective), static_argnums=2)
    dense, gathered, native = (seconds(gradient, matrix, h, form) for form in forms)
    return gathered / dense, native / dense


def main() -> None:
    densities = (0.004, 0.016, 0.0625, 0.125, 0.25, 0.5)
    print("gathered / dense, native / dense")
    print("units  steps  " + "  ".join(f"{density:>12.2%}" for density in densities))
    for units in (128, 512, 1024):
        for steps in (1, 32):
            row = (ratios(units, density, steps) for density in densities)
            print(f"{units:>5}  {steps:>5}  " + "  ".join(f"{a:>6.2f}{b:>6.2f}" for a, b in row), flush=True)


if __name__ == "__main__":
    main()
