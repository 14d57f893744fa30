"""The adding problem (Hochreiter & Schmidhuber 1997, experiment 4, as in later work): one number far from its causes.

    step       0   ...      a      ...      b      ...   L - 1
    input    (u, 0)      (u_a, 1)        (u_b, 1)       (u, 0)
    target     -            -               -         u_a + u_b

Every u is uniform in [0, 1); a lies in the first half of the sequence, b in the second. Saying always 1, the
mean, leaves a squared error of 1/6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from snapgrad import arguments
from snapgrad.tasks.base import Numbers, NumberTask, Window


class AddingState(NamedTuple):
    """Where the task is; all lanes go together."""

    keys: jax.Array  # [B], one a lane
    sequence: jax.Array  # so many came before it
    step: jax.Array  # within the sequence


@dataclass(frozen=True)
class Adding(NumberTask):
    """Sequences of one length."""

    length: int = 50
    inputs = 2
    outputs = 1
    guessing = 1 / 6

    def __post_init__(self) -> None:
        arguments.positive_integer("length", self.length, arguments.MOST_STEPS)
        if self.length < 2:
            raise ValueError(f"`length` must be an integer >= 2, for two numbers to add, got {self.length}")

    def start(self, key: jax.Array, batch: int) -> AddingState:
        return AddingState(jax.random.split(key, batch), jnp.int32(0), jnp.int32(0))

    def window(self, data: tuple[()], state: AddingState, steps: int) -> tuple[AddingState, Window]:
        keys = jax.vmap(lambda key: jax.random.fold_in(key, state.sequence))(state.keys)
        half = self.length // 2

        def lane(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            for_numbers, for_first, for_second = jax.random.split(key, 3)

            def number(step: jax.Array) -> jax.Array:
                return jax.random.uniform(jax.random.fold_in(for_numbers, step))

            first = jax.random.randint(for_first, (), 0, half, jnp.int32)
            second = jax.random.randint(for_second, (), half, self.length, jnp.int32)
            at = state.step + jnp.arange(steps, dtype=jnp.int32)
            inside = at < self.length
            marks = ((at == first) | (at == second)).astype(jnp.result_type(float))
            numbers = jnp.where(inside, jax.vmap(number)(at), 0)
            return jnp.stack([numbers, marks], axis=1), number(first) + number(second)

        xs, sums = jax.vmap(lane, out_axes=(1, 0))(keys)  # [T, B, 2], [B]
        at = state.step + jnp.arange(steps, dtype=jnp.int32)
        batch = len(keys)
        targets = Numbers(
            value=jnp.broadcast_to(sums[None, :, None], (steps, batch, 1)),
            asked=jnp.broadcast_to((at == self.length - 1)[:, None], (steps, batch)),
        )
        step = state.step + steps
        ends = step >= self.length
        after = AddingState(state.keys, state.sequence + ends.astype(jnp.int32), jnp.where(ends, 0, step))
        tokens = batch * jnp.sum(at < self.length, dtype=jnp.int32)
        return after, Window(xs, targets, jnp.full(batch, state.step == 0), tokens)

    def sequence_steps(self, state: AddingState) -> int:
        return self.length
