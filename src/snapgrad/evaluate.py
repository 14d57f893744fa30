"""Bits per character of a trained network over a whole text."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.algorithms.frozen import frozen
from snapgrad.algorithms.interface import Loss, Params, State
from snapgrad.cells.base import Cell
from snapgrad.kernels.select import Backend
from snapgrad.tasks.base import PADDING
from snapgrad.tasks.characters import check_text

LANES = 64  # sequences side by side
PART = 128  # steps at a time, at most: memory goes with them


def evaluator(
    cell: Cell, loss: Loss, text: np.ndarray, length: int | None, backend: Backend
) -> Callable[[Params], float]:
    """A function from parameters to bits per character.

    Every byte but the first is predicted once. With a `length` the text is cut into sequences of that length, each
    read from reset, as in training on crops; without, into as many long ones as there are lanes.
    """
    check_text(text, 2)
    asked = len(text) - 1
    steps = length or -(-asked // LANES)
    groups = -(-asked // (steps * LANES))
    xs, targets = (_in_groups(text[i : asked + i], groups, steps) for i in (0, 1))
    # Nothing of the readout's gradient is used, so none of it is computed.
    algorithm = frozen(cell, loss, backend=backend)

    @jax.jit
    def nats(params: Params, xs: jax.Array, targets: jax.Array) -> jax.Array:
        def of_part(state: State, part: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
            gradient, state = algorithm.grad(params, state, *(symbols.astype(jnp.int32) for symbols in part))
            return state, gradient.info.losses.sum()

        def of_group(group: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jax.lax.scan(of_part, algorithm.init(params, LANES), group)[1].sum()

        return jax.lax.map(of_group, (xs, targets))

    def bits_per_character(params: Params) -> float:
        return float(np.sum(np.asarray(nats(params, xs, targets), np.float64)) / np.log(2) / asked)

    return bits_per_character


def _in_groups(symbols: np.ndarray, groups: int, steps: int) -> jax.Array:
    """[groups, parts, steps of a part, lanes] int16, filled up with PADDING."""
    parts = -(-steps // PART)
    filled = np.full(groups * LANES * steps, PADDING, np.int16)
    filled[: len(symbols)] = symbols
    sequences = filled.reshape(groups, LANES, steps)
    padded = np.pad(sequences, ((0, 0), (0, 0), (0, -steps % parts)), constant_values=PADDING)
    return jnp.asarray(padded.reshape(groups, LANES, parts, -1).transpose(0, 2, 3, 1))
