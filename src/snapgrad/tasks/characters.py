"""Next-byte prediction on random crops of a text, as in the paper (section 5.1): with replacement, from reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.sparsity.matrix import describe
from snapgrad.tasks.base import PADDING, SymbolTask, Window

BYTES = 256
MOST_BYTES = (1 << 31) - 1 - arguments.MOST_STEPS  # of a text: places are counted in int32, with a window on top


class CropsState(NamedTuple):
    """Where the task is."""

    key: jax.Array
    minibatch: jax.Array  # number of minibatches before this one
    step: jax.Array  # within the minibatch
    starts: jax.Array  # [B] of its crops, in the text


@dataclass(frozen=True, eq=False)
class Crops(SymbolTask):
    """A sequence is a random crop of the text: `length` bytes are to be predicted, each from those before it."""

    text: np.ndarray  # uint8
    length: int = 128
    inputs = BYTES
    classes = BYTES

    def __post_init__(self) -> None:
        arguments.positive_integer("length", self.length, arguments.MOST_STEPS)
        check_text(self.text, self.length + 1)

    @property
    def data(self) -> jax.Array:
        return jnp.asarray(self.text)

    def start(self, key: jax.Array, batch: int) -> CropsState:
        return CropsState(key, jnp.int32(0), jnp.int32(0), jnp.zeros(batch, jnp.int32))

    def window(self, data: jax.Array, state: CropsState, steps: int) -> tuple[CropsState, Window]:
        is_start = state.step == 0
        key = jax.random.fold_in(state.key, state.minibatch)
        places = len(data) - self.length  # a crop has one byte more than it has predictions
        drawn = jax.random.randint(key, state.starts.shape, 0, places, jnp.int32)
        starts = jnp.where(is_start, drawn, state.starts)

        def symbols(offset: jax.Array) -> tuple[jax.Array, jax.Array]:
            inside = state.step + offset < self.length
            # Beyond the crop an index may leave the text: JAX then takes the last byte, and the mask drops it.
            at = starts + state.step + offset  # [B]
            x, target = (jnp.where(inside, data[at + i].astype(jnp.int32), PADDING) for i in (0, 1))
            return x, target

        xs, targets = jax.vmap(symbols)(jnp.arange(steps, dtype=jnp.int32))
        step = state.step + steps
        ends = step >= self.length
        after = CropsState(state.key, state.minibatch + ends.astype(jnp.int32), jnp.where(ends, 0, step), starts)
        tokens = jnp.sum(targets != PADDING, dtype=jnp.int32)
        return after, Window(xs, targets, jnp.full(starts.shape, is_start), tokens)

    def sequence_steps(self, state: CropsState) -> int:
        return self.length


def check_text(text: np.ndarray, least: int) -> None:
    """Refuses what is not a text of bytes that is long enough."""
    if not isinstance(text, np.ndarray) or text.dtype != np.uint8 or text.ndim != 1:
        raise TypeError(f"`text` must be a 1-D array of uint8, got {describe(text)}")
    if len(text) < least:
        raise ValueError(f"`text` must have at least {least} bytes, got {len(text)}")
    if len(text) > MOST_BYTES:
        raise ValueError(f"`text` must have at most {MOST_BYTES} bytes, got {len(text)}")
