"""A sparse GRU learns to copy, online: SnAp beside truncated backpropagation and RFLO, on the same stream.

Every lane of the batch reads random bits, then is asked to say them again. Weights are updated at every single step, so
truncated backpropagation sees no past at all and cannot learn it; SnAp carries its influence forward and can.

    python examples/online_copy.py [--length 5] [--tokens 400000]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import snapgrad as sg

UNITS, SPARSITY, BATCH, LEARNING_RATE = 32, 0.75, 16, 3e-3
Readout = tuple[jax.Array, jax.Array]


def loss(readout: Readout, h: jax.Array, target: jax.Array) -> jax.Array:
    """Bits needed for the target (0 or 1), and nothing where there is none (-1)."""
    weight, bias = readout
    nats = optax.sigmoid_binary_cross_entropy(weight @ h + bias, jnp.maximum(target, 0).astype(h.dtype))
    return jnp.where(target >= 0, nats / jnp.log(2.0), 0.0)


def copy_stream(sequences: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [T, B, 4] (bit 0, bit 1, start, recall) and targets [T, B] of sequences that follow each other."""
    bits = np.random.default_rng(0).integers(0, 2, (sequences, length, BATCH))
    steps = 2 * length + 2
    xs, targets = np.zeros((sequences, steps, BATCH, 4), np.float32), np.full((sequences, steps, BATCH), -1)
    xs[:, 0, :, 2] = xs[:, length + 1, :, 3] = 1
    xs[:, 1 : length + 1, :, :2] = np.eye(2)[bits]
    targets[:, length + 2 :] = bits
    return xs.reshape(-1, BATCH, 4), targets.reshape(-1, BATCH)


def bits_per_symbol(algorithm: sg.Algorithm, params: sg.Params, xs: Any, targets: Any, length: int) -> jax.Array:
    """Trains online over the whole stream in one compiled loop; bits per recalled symbol of every sequence."""
    optimiser = optax.adam(LEARNING_RATE)
    starts = jnp.arange(len(xs)) % (2 * length + 2) == 0

    def update(carry: Any, at_t: Any) -> Any:
        params, opt_state, state = carry
        x, target, start = at_t
        state = algorithm.reset(state, jnp.full(BATCH, start))
        gradient, state = algorithm.grad(params, state, x[None], target[None])
        updates, opt_state = optimiser.update(gradient.grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, state), gradient.loss

    state = algorithm.init(params, batch_size=BATCH, key=jax.random.key(1))
    _, losses = jax.jit(lambda carry: jax.lax.scan(update, carry, (xs, targets, starts)))(
        (params, optimiser.init(params), state)
    )
    return losses.reshape(-1, 2 * length + 2).sum(axis=1) / length


def main() -> None:
    """Runs every algorithm on the same stream and prints a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--length", type=int, default=5, help="bits to remember")
    options.add_argument("--tokens", type=int, default=400_000, help="time steps times batch size")
    chosen = options.parse_args()

    cell = sg.GRU(inputs=4, units=UNITS)
    keys = jax.random.split(jax.random.key(0))
    readout = jax.random.normal(keys[1], (UNITS,)) / UNITS**0.5, jnp.zeros(())
    params = sg.Params(cell=cell.init(keys[0], sparsity=SPARSITY), readout=readout)
    sequences = max(20, chosen.tokens // BATCH // (2 * chosen.length + 2))
    xs, targets = copy_stream(sequences, chosen.length)

    algorithms = {
        "truncated BPTT, T = 1": sg.bptt(cell, loss),
        "RFLO": sg.rflo(cell, loss, decay=0.9),
        "SnAp-1": sg.snap(cell, loss, order=1),
        "SnAp-2": sg.snap(cell, loss, order=2),
    }
    print(f"Copying {chosen.length} bits with {cell}, {SPARSITY:.0%} sparse; one update a step, {sequences} sequences.")
    print(f"Bits per symbol: 1 is guessing, 0 is perfect.\n\n{'':24}{'begin':>8}{'middle':>8}{'end':>8}{'time':>9}")
    for name, algorithm in algorithms.items():
        start = time.perf_counter()
        bits = np.asarray(bits_per_symbol(algorithm, params, xs, targets, chosen.length))
        tenth = max(1, sequences // 10)
        middle = bits[(sequences - tenth) // 2 : (sequences + tenth) // 2 + 1]
        print(
            f"{name:24}{bits[:tenth].mean():8.2f}{middle.mean():8.2f}{bits[-tenth:].mean():8.2f}"
            f"{time.perf_counter() - start:8.1f}s",
            flush=True,
        )


if __name__ == "__main__":
    main()
