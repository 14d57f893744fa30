"""Bits per character of a trained network over a whole text."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.algorithms import checks
from snapgrad.algorithms.frozen import frozen
from snapgrad.algorithms.interface import Params, State
from snapgrad.cells.base import Cell
from snapgrad.kernels.select import Backend
from snapgrad.readouts import Readout
from snapgrad.tasks.base import PADDING
from snapgrad.tasks.characters import check_text

LANES = 64  # sequences side by side
PART = 128  # steps at a time, at most: memory goes with them


def evaluate(
    cell: Cell,
    readout: Readout,
    params: Params,
    text: bytes | np.ndarray,
    *,
    length: int | None = None,
    backend: Backend = "auto",
) -> float:
    """Bits per character: what it costs the network to predict every byte of a text but the first, each once.

    It compiles once for a network and a length of the text.

    Args:
        cell: the recurrent cell.
        readout: from its output to logits.
        params: their parameters.
        text: bytes, or an array of uint8.
        length: cuts the text into sequences of that length, each read from reset, as in training on crops. With None
            it is cut into 64 long ones, which are read side by side.
        backend: "native" (C++, CPU), "reference" (plain JAX, any device), or "auto": native wherever it can run.
    """
    check_network(cell, readout, params)
    if isinstance(text, bytes):
        text = np.frombuffer(text, np.uint8)
    check_text(text, 2)
    if (largest := int(text.max())) >= min(cell.inputs, readout.classes):
        raise ValueError(
            f"`text` must have bytes below {cell.inputs} (`cell.inputs`) and {readout.classes} (`readout.classes`), "
            f"got {largest}"
        )
    if length is not None:
        arguments.positive_integer("length", length)
    asked = len(text) - 1
    steps = min(length or -(-asked // LANES), asked)
    groups = -(-asked // (steps * LANES))
    xs, targets = (_in_groups(text[i : asked + i], groups, steps) for i in (0, 1))
    nats = _nats(cell, readout, backend, params, xs, targets)
    return float(np.sum(np.asarray(nats, np.float64)) / np.log(2) / asked)


def check_network(cell: Cell, readout: Readout, params: Params) -> None:
    """Refuses parameters that do not fit the cell or the readout."""
    checks.cell(cell)
    if not isinstance(readout, Readout):
        raise TypeError(f"`readout` must be a sg.Readout, got {type(readout).__name__}")
    checks.params(cell, params)
    h = jax.eval_shape(lambda: cell.output(cell.initial_state()))
    like = jax.eval_shape(lambda: readout.init(jax.random.key(0), h.shape[0]))
    wanted, given = (
        {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (like, params.readout)
    )
    if wanted != given:
        raise ValueError(f"`params.readout` must be what {readout}.init returns, of shapes {wanted}, got {given}")


@partial(jax.jit, static_argnums=(0, 1, 2))
def _nats(
    cell: Cell, readout: Readout, backend: Backend, params: Params, xs: jax.Array, targets: jax.Array
) -> jax.Array:
    """What each group costs."""
    # Nothing of the readout's gradient is used, so none of it is computed.
    algorithm = frozen(cell, readout.loss, backend=backend)

    def of_part(state: State, part: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        gradient, state = algorithm.grad(params, state, *(symbols.astype(jnp.int32) for symbols in part))
        return state, gradient.info.losses.sum()

    def of_group(group: Any) -> jax.Array:
        return jax.lax.scan(of_part, algorithm.init(params, LANES), group)[1].sum()

    return jax.lax.map(of_group, (xs, targets))


def _in_groups(symbols: np.ndarray, groups: int, steps: int) -> jax.Array:
    """[groups, parts, steps of a part, lanes] int16, filled up with PADDING."""
    parts = -(-steps // PART)
    filled = np.full(groups * LANES * steps, PADDING, np.int16)
    filled[: len(symbols)] = symbols
    sequences = filled.reshape(groups, LANES, steps)
    padded = np.pad(sequences, ((0, 0), (0, 0), (0, -steps % parts)), constant_values=PADDING)
    return jnp.asarray(padded.reshape(groups, LANES, parts, -1).transpose(0, 2, 3, 1))
