"""Sampling from a character network: it goes on from a prompt, each symbol read as the next input."""

from __future__ import annotations

import math
import numbers
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments, memory
from snapgrad.algorithms.interface import Params
from snapgrad.cells.base import Cell, PyTree
from snapgrad.evaluate import check_network
from snapgrad.readouts import Readout
from snapgrad.tasks.base import PADDING
from snapgrad.tasks.characters import BYTES


def generate(
    cell: Cell,
    readout: Readout,
    params: Params,
    prompt: bytes | np.ndarray,
    length: int,
    key: jax.Array | None = None,
    temperature: float = 1.0,
) -> bytes | np.ndarray:
    """What the network says after a prompt: `length` symbols, without the prompt.

    It compiles once for a network and a sum of prompt and length.

    Args:
        cell: the recurrent cell; it has as many inputs as the readout has classes.
        readout: from its output to logits.
        params: their parameters.
        prompt: at least one symbol, read from reset. Bytes give bytes, for a network of 256 classes; an array of
            integers gives an array of int32.
        length: number of symbols to generate.
        key: a PRNG key; the same one gives the same symbols. May be None at temperature 0.
        temperature: logits are divided by it: below 1 likely symbols become likelier, at 0 the likeliest is taken.
    """
    check_network(cell, readout, params)
    if cell.inputs != readout.classes:
        raise ValueError(f"`readout` must have as many classes as the cell has inputs, {cell.inputs}, got {readout}")
    symbols = _symbols(prompt, readout.classes)
    check_sampling(length, temperature)
    if key is None and temperature > 0:
        raise ValueError("`key` must be a PRNG key, or None at temperature 0, got None")
    if key is not None:
        arguments.key("key", key)
    memory.check("length", "the symbols and their keys", {"symbols": 16.0 * (len(symbols) + length)}, "a shorter one")
    xs = jnp.asarray(np.pad(symbols, (0, length - 1), constant_values=PADDING))
    keys = None if key is None or temperature == 0 else jax.random.split(key, len(xs))
    said = np.asarray(_sample(cell, readout, params, xs, keys, float(temperature)))[-length:]
    return said.astype(np.uint8).tobytes() if isinstance(prompt, bytes) else said


def check_sampling(length: Any, temperature: Any) -> None:
    """Refuses a length or a temperature that cannot be sampled with."""
    arguments.positive_integer("length", length)
    is_number = isinstance(temperature, numbers.Real) and not isinstance(temperature, bool)
    if not is_number or not 0 <= float(temperature) < math.inf:
        raise ValueError(f"`temperature` must be a finite number >= 0, got {arguments.shown(temperature)}")


def _symbols(prompt: Any, classes: int) -> np.ndarray:
    """The prompt as int32."""
    if isinstance(prompt, bytes):
        if classes != BYTES:
            raise TypeError(f"`prompt` must be an array of integers for a network of {classes} classes, got bytes")
        prompt = np.frombuffer(prompt, np.uint8)
    if not isinstance(prompt, np.ndarray | jax.Array) or prompt.ndim != 1 or prompt.dtype.kind not in "iu":
        raise TypeError(f"`prompt` must be bytes or a vector of integers, got {type(prompt).__name__}")
    symbols = np.asarray(prompt)
    if not len(symbols):
        raise ValueError("`prompt` must have at least one symbol, got none")
    if symbols.min() < 0 or symbols.max() >= classes:
        raise ValueError(f"`prompt` must have symbols in [0, {classes}), got {symbols.min()} to {symbols.max()}")
    return symbols.astype(np.int32)


@partial(jax.jit, static_argnums=(0, 1))
def _sample(
    cell: Cell, readout: Readout, params: Params, xs: jax.Array, keys: jax.Array | None, temperature: Any
) -> jax.Array:
    """The symbol drawn after every step [T]; where `xs` is PADDING, the one drawn before is the input."""

    def step(carry: tuple[PyTree, jax.Array], at_t: tuple[jax.Array, Any]) -> tuple[Any, jax.Array]:
        s, drawn = carry
        x, key = at_t
        s = cell.step(params.cell, s, jnp.where(x == PADDING, drawn, x))
        logits = readout.logits(params.readout, cell.output(s))
        if key is None:
            drawn = jnp.argmax(logits)
        else:
            # Neither a large logit nor a tiny temperature makes a NaN here.
            at_least = jnp.maximum(jnp.asarray(temperature, logits.dtype), jnp.finfo(logits.dtype).tiny)
            drawn = jax.random.categorical(key, (logits - logits.max()) / at_least)
        drawn = drawn.astype(jnp.int32)
        return (s, drawn), drawn

    dtype = jnp.result_type(*jax.tree.leaves(params.cell))
    start = jax.tree.map(lambda leaf: leaf.astype(dtype), cell.initial_state())
    return jax.lax.scan(step, (start, jnp.int32(PADDING)), (xs, keys))[1]
