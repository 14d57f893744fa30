"""One training loop for every cell, algorithm, task and optimiser.

    trainer = Trainer(algorithm, task, optax.adam(1e-3), batch=16, update_every=1)
    carry = trainer.start(params, key)
    carry, progress = trainer.run(carry, tokens=10_000)

`run` is one compiled loop: data, gradients, updates and the curriculum stay on the device until it returns. It returns
after the first update at which `tokens` have been seen; a run that is cut into several calls makes the same updates.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from snapgrad import arguments
from snapgrad.algorithms.interface import Algorithm, Params, State
from snapgrad.tasks.base import PADDING, Task

# Whole sequences are filled up to a multiple of this, so that a curriculum which grows compiles only now and then.
PADDED_TO = 8

# Of one call of the compiled loop: long ones are cut, so that Python looks up now and then and sums stay exact enough.
MOST_TOKENS = 1 << 17

BITS = 1 / math.log(2)  # in a nat


class Carry(NamedTuple):
    """Everything that a run goes on from."""

    params: Params
    opt_state: optax.OptState
    state: State
    task: Any


class Progress(NamedTuple):
    """What happened in one call of `run`."""

    tokens: int
    updates: int
    bits: float  # that the asked characters cost
    asked: int
    finite: bool  # False: a loss or weight was not finite after the last update, and training stopped there
    seconds: float  # of training, without compilation


class _Counts(NamedTuple):
    tokens: jax.Array
    updates: jax.Array
    bits: jax.Array
    asked: jax.Array
    finite: jax.Array


@dataclass(frozen=True, eq=False)
class Trainer:
    """A network, how it learns, and from what. It knows no algorithm by name.

    Args:
        algorithm: made for a cell and a loss on the task's targets (`Readout.loss`).
        task: where the data comes from.
        optimiser: any of Optax.
        batch: lanes side by side.
        update_every: steps between updates; None for one update at the end of each sequence.
    """

    algorithm: Algorithm
    task: Task
    optimiser: optax.GradientTransformation
    batch: int = 16
    update_every: int | None = 1

    def __post_init__(self) -> None:
        arguments.positive_integer("batch", self.batch)
        if self.update_every is not None:
            arguments.positive_integer("update_every", self.update_every)

    def start(self, params: Params, key: jax.Array) -> Carry:
        """The beginning of a run. It takes a copy of the parameters."""
        for_algorithm, for_task = jax.random.split(key)
        task = self.task.start(for_task, self.batch)
        if self.update_every is None and self.task.sequence_steps(task) is None:
            raise ValueError("`update_every` must be an integer for a task whose sequences never end, got None")
        state = self.algorithm.init(params, self.batch, key=for_algorithm)
        return jax.tree.map(jnp.copy, Carry(params, self.optimiser.init(params), state, task))

    def run(self, carry: Carry, tokens: int) -> tuple[Carry, Progress]:
        """Trains until that many more tokens have been seen. Takes the memory of `carry`: go on from the result."""
        arguments.positive_integer("tokens", tokens)
        total = Progress(0, 0, 0.0, 0, True, 0.0)
        while total.finite and total.tokens < tokens:
            program = self._program(self._window_steps(carry), carry)
            begun = time.perf_counter()
            carry, counts = program(self._data, carry, jnp.int32(min(tokens - total.tokens, MOST_TOKENS)))
            counts = jax.device_get(counts)
            total = Progress(
                total.tokens + int(counts.tokens),
                total.updates + int(counts.updates),
                total.bits + float(counts.bits),
                total.asked + int(counts.asked),
                bool(counts.finite),
                total.seconds + time.perf_counter() - begun,
            )
        return carry, total

    @cached_property
    def _data(self) -> Any:
        return self.task.data

    @cached_property
    def _programs(self) -> dict[int, Any]:
        return {}

    def _window_steps(self, carry: Carry) -> int:
        """Steps of a window: a number that depends on the carry alone, so that a resumed run takes the same."""
        if self.update_every is not None:
            return self.update_every
        steps = self.task.sequence_steps(carry.task)
        assert steps is not None
        return -(-int(steps) // PADDED_TO) * PADDED_TO

    def _program(self, steps: int, carry: Carry) -> Any:
        if steps not in self._programs:
            loop = jax.jit(lambda data, carry, tokens: self._loop(data, carry, tokens, steps), donate_argnums=1)
            self._programs[steps] = loop.lower(self._data, carry, jnp.int32(0)).compile()
        return self._programs[steps]

    def _loop(self, data: Any, carry: Carry, tokens: jax.Array, steps: int) -> tuple[Carry, _Counts]:
        def going_on(both: tuple[Carry, _Counts]) -> jax.Array:
            carry, counts = both
            go = counts.finite & (counts.tokens < tokens)
            if self.update_every is None:  # sequences may have outgrown the window
                longest = self.task.sequence_steps(carry.task)
                assert longest is not None  # `start` has seen to it
                go &= longest <= steps
            return go

        def update(both: tuple[Carry, _Counts]) -> tuple[Carry, _Counts]:
            (params, opt_state, state, task), counts = both
            task, window = self.task.window(data, task, steps)
            state = self.algorithm.reset(state, window.is_start)
            gradient, state = self.algorithm.grad(params, state, window.xs, window.targets)
            updates, opt_state = self.optimiser.update(gradient.grads, opt_state, params)
            bits = gradient.info.losses.astype(jnp.float32) * BITS  # [T, B]
            carry = Carry(optax.apply_updates(params, updates), opt_state, state, self.task.learn(task, bits))
            return carry, _Counts(
                counts.tokens + window.tokens.astype(jnp.int32),
                counts.updates + 1,
                counts.bits + bits.sum(),
                counts.asked + jnp.sum(window.targets != PADDING, dtype=jnp.int32),
                jnp.isfinite(gradient.loss),
            )

        zero = jnp.int32(0)
        start = carry, _Counts(zero, zero, jnp.float32(0), zero, jnp.array(True))
        carry, counts = jax.lax.while_loop(going_on, update, start)
        # The last update may have broken what the next loss would show.
        whole = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((carry.params, carry.opt_state))]
        return carry, counts._replace(finite=counts.finite & jnp.stack(whole).all())
