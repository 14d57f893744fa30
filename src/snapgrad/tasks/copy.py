"""The copy task of the paper (section 5.2): read a binary string, then say it again.

    step      0      1 .. L     L + 1    L + 2 .. 2 L + 1
    input   start   the bits     end         nothing
    target    -        -          -         the bits

Lengths are drawn uniformly from [max(L - 5, 1), L], and L, the level, grows by one whenever the average bits per
character of a minibatch falls below 0.15. A lane begins its next sequence with the first window after it has ended the
last, whatever the other lanes do; a minibatch is as many ended sequences as there are lanes. Where a window holds a
whole sequence, lanes go together and this is the minibatch as one knows it. The paper does not say what a minibatch is
where weights are updated within a sequence; `minibatch="window"` is the other reading, the characters of one update,
where at least half of the lanes are asked for one. With a fixed length, as in the paper's
analysis of the bias, there is no curriculum and the end flag comes once more after the string: 2 L + 3 steps, 35 for
L = 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from snapgrad import arguments
from snapgrad.tasks.base import PADDING, SymbolTask, Window
from snapgrad.tasks.unrolled import unrolled

START, END = 2, 3  # symbols beside the bits 0 and 1
THRESHOLD = 0.15  # bits per character at which a level is learnt
SHORTER = 5  # than the level, at most


Minibatch = Literal["sequences", "window"]


class Ended(NamedTuple):
    """Of the sequences that have ended since the last full minibatch."""

    sequences: jax.Array
    characters: jax.Array
    bits: jax.Array


class CopyState(NamedTuple):
    """Where the task is."""

    key: jax.Array
    level: jax.Array
    ended: Ended
    # [B], of the sequence that a lane is in:
    number: jax.Array  # that many came before it
    length: jax.Array
    step: jax.Array  # the next one
    bits: jax.Array  # that it has cost so far


@dataclass(frozen=True)
class Copy(SymbolTask):
    """Copying with a curriculum, or, with a `length`, strings of that length only."""

    length: int | None = None
    minibatch: Minibatch = "sequences"  # what the curriculum takes the average of
    inputs = 4
    classes = 2

    def __post_init__(self) -> None:
        if self.minibatch not in get_args(Minibatch):
            raise ValueError(f'`minibatch` must be "sequences" or "window", got {self.minibatch!r}')
        if self.length is not None:
            arguments.positive_integer("length", self.length, arguments.MOST_STEPS // 2)  # 2 L + 3 steps, in int32

    def start(self, key: jax.Array, batch: int) -> CopyState:
        zeros, none = jnp.zeros(batch, jnp.int32), jnp.int32(0)
        ended = Ended(none, none, jnp.float32(0))
        # Lanes begin as if they had just ended a sequence.
        before = jnp.full(batch, -1, jnp.int32)
        level = jnp.int32(self.length or 1)
        return CopyState(key, level, ended, before, zeros, self._steps(zeros), jnp.zeros(batch, jnp.float32))

    def window(self, data: tuple[()], state: CopyState, steps: int) -> tuple[CopyState, Window]:
        is_start = state.step >= self._steps(state.length)  # [B]
        number = state.number + is_start.astype(jnp.int32)
        lanes = jax.random.split(unrolled(state.key), len(is_start))
        keys = jax.vmap(lambda lane, n: jax.random.split(jax.random.fold_in(lane, n)))(lanes, number)  # [B, 2]
        length = jnp.where(is_start, self._draw(keys[:, 0], state.level), state.length)
        first = jnp.where(is_start, 0, state.step)

        def symbols(offset: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            step = first + offset  # [B]
            reading, saying = (step >= 1) & (step <= length), (step >= length + 2) & (step < 2 * length + 2)
            place = jnp.where(reading, step - 1, step - length - 2)  # in the string
            bit = jax.vmap(lambda key, at: jax.random.bits(jax.random.fold_in(key, at)) & 1)(keys[:, 1], place)
            bit = bit.astype(jnp.int32)
            flag = (step == length + 1) | ((step == 2 * length + 2) & (self.length is not None))
            x = jnp.where(reading, bit, jnp.where(flag, END, jnp.where(step == 0, START, PADDING)))
            return x, jnp.where(saying, bit, PADDING), step < self._steps(length)

        xs, targets, inside = jax.vmap(symbols)(jnp.arange(steps, dtype=jnp.int32))
        after = state._replace(
            number=number, length=length, step=first + steps, bits=jnp.where(is_start, 0, state.bits)
        )
        return after, Window(xs, targets, is_start, jnp.sum(inside, dtype=jnp.int32))

    def learn(self, state: CopyState, bits: jax.Array) -> CopyState:
        of_lane = state.bits + bits.sum(axis=0)
        just_ended = state.step >= self._steps(state.length)
        ended = Ended(
            state.ended.sequences + jnp.sum(just_ended, dtype=jnp.int32),
            state.ended.characters + jnp.sum(jnp.where(just_ended, state.length, 0), dtype=jnp.int32),
            state.ended.bits + jnp.sum(jnp.where(just_ended, of_lane, 0)),
        )
        full = ended.sequences >= len(state.step)
        below = ended.bits < THRESHOLD * ended.characters.astype(jnp.float32)
        learnt = self._learnt_in_window(state, bits) if self.minibatch == "window" else full & below
        return state._replace(
            level=state.level + (learnt & (self.length is None)).astype(jnp.int32),
            ended=jax.tree.map(lambda n: jnp.where(full, 0, n), ended),
            bits=of_lane,
        )

    def _learnt_in_window(self, state: CopyState, bits: jax.Array) -> jax.Array:
        begin, end = state.length + 2, 2 * state.length + 2  # of the steps that are asked
        asked = jnp.minimum(state.step, end) - jnp.maximum(state.step - len(bits), begin)  # [B]
        characters = jnp.sum(jnp.maximum(asked, 0))
        enough = 2 * jnp.sum(asked > 0, dtype=jnp.int32) >= len(asked)
        return enough & (bits.sum() < THRESHOLD * characters.astype(jnp.float32))

    def _draw(self, keys: jax.Array, level: jax.Array) -> jax.Array:
        if self.length is not None:
            return jnp.full(len(keys), level)
        shortest = jnp.maximum(level - SHORTER, 1)
        return jax.vmap(lambda key: jax.random.randint(key, (), shortest, level + 1, jnp.int32))(keys)

    def sequence_steps(self, state: CopyState) -> jax.Array:
        return self._steps(state.level)

    def level(self, state: CopyState) -> jax.Array | None:
        return state.level if self.length is None else None

    def _steps(self, length: jax.Array) -> jax.Array:
        return 2 * length + (2 if self.length is None else 3)
