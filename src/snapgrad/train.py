"""One training loop for every cell, algorithm, task and optimiser.

    trainer = Trainer(algorithm, task, optax.adam(1e-3), batch=16, update_every=1)
    carry = trainer.start(params, key)
    carry, progress = trainer.run(carry, tokens=10_000)

`run` is one compiled loop: data, gradients, updates and the curriculum stay on the device until it returns. It returns
after the first update at which `tokens` have been seen; a run that is cut into several calls makes the same updates.
With `rewire` the sparsity patterns change on the way (plasticity.py), between two calls of the compiled loop.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from snapgrad import arguments
from snapgrad.algorithms.interface import Algorithm, Params, State
from snapgrad.plasticity import Change, Network, Plasticity, Rule
from snapgrad.slotted import Slotted
from snapgrad.sparsity.matrix import densify, map_matrices
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
    wiring: Any = None  # `plasticity.Wiring` of a run whose patterns change


class Progress(NamedTuple):
    """What happened in one call of `run`."""

    tokens: int
    updates: int
    bits: float  # that the asked characters cost
    asked: int
    finite: bool  # False: a loss or weight was not finite after the last update, and training stopped there
    seconds: float  # of training, without compilation
    added: int = 0  # weights that have come into existence
    removed: int = 0  # and that have gone

    @classmethod
    def none(cls) -> Progress:
        """What has happened before anything has."""
        return cls(0, 0, 0.0, 0, True, 0.0)


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
        rewire: a rule of `sg.rewiring` or `sg.pruning` by which the cell's patterns change; None for fixed ones.
    """

    algorithm: Algorithm
    task: Task
    optimiser: optax.GradientTransformation
    batch: int = 16
    update_every: int | None = 1
    rewire: Rule | None = None

    def __post_init__(self) -> None:
        _ = self._plasticity  # checks the rule
        arguments.positive_integer("batch", self.batch)
        if self.update_every is not None:
            arguments.positive_integer("update_every", self.update_every)

    def start(self, params: Params, key: jax.Array) -> Carry:
        """The beginning of a run. It takes a copy of the parameters."""
        # A run that rewires sees the same data as one that does not.
        for_algorithm, for_task, for_wiring = *jax.random.split(key), jax.random.fold_in(key, 2)
        task = self.task.start(for_task, self.batch)
        if self.update_every is None and self.task.sequence_steps(task) is None:
            raise ValueError("`update_every` must be an integer for a task whose sequences never end, got None")
        state = self.algorithm.init(params, self.batch, key=for_algorithm)
        wiring = None
        if self._plasticity is not None:
            state, wiring = self._plasticity.start(params, state, for_wiring)
        return jax.tree.map(jnp.copy, Carry(params, self.optimiser.init(params), state, task, wiring))

    def run(self, carry: Carry, tokens: int) -> tuple[Carry, Progress]:
        """Trains until that many more tokens have been seen. Takes the memory of `carry`: go on from the result."""
        arguments.positive_integer("tokens", tokens)
        total = Progress.none()
        while total.finite and total.tokens < tokens:
            begun = time.perf_counter()
            carry, change = self._change(carry)
            changed = time.perf_counter() - begun
            with self._in_slots(carry) as given:
                program = self._program(self._window_steps(carry), given)
                begun = time.perf_counter()
                given, counts = program(self._data, given, jnp.int32(min(tokens - total.tokens, MOST_TOKENS)))
                counts = jax.device_get(counts)
            carry = jax.tree.unflatten(jax.tree.structure(carry), jax.tree.leaves(given))
            total = Progress(
                total.tokens + int(counts.tokens),
                total.updates + int(counts.updates),
                total.bits + float(counts.bits),
                total.asked + int(counts.asked),
                bool(counts.finite),
                total.seconds + changed + time.perf_counter() - begun,
                total.added + change.added,
                total.removed + change.removed,
            )
        return carry, total

    @cached_property
    def _plasticity(self) -> Plasticity | None:
        return None if self.rewire is None else Plasticity(self.rewire, self.algorithm, self.batch)

    def _in_slots(self, carry: Carry) -> AbstractContextManager[Carry]:
        """The carry as the compiled loop takes it: where patterns change, its plans are in slots."""
        structures = None
        if self._plasticity is not None:
            structures = self._plasticity.structures(_network(carry))
        return nullcontext(carry) if structures is None else self._slots.labelled(carry, structures)

    @cached_property
    def _slots(self) -> Slotted:
        return Slotted()

    def _change(self, carry: Carry) -> tuple[Carry, Change]:
        """Changes the patterns if that is due: it depends on the carry alone, so that a resumed run does the same."""
        if self._plasticity is None or not self._plasticity.is_due(carry.wiring):
            return carry, Change()
        network, change = self._plasticity.change(_network(carry), lambda: self._dense_gradient(carry))
        return carry._replace(**network._asdict()), change

    def _dense_gradient(self, carry: Carry) -> Params:
        """The gradient of the next window, which is not taken yet, as if all weights existed."""
        dense = carry.params._replace(cell=map_matrices(densify, carry.params.cell))
        state = self.algorithm.rewire(carry.state, carry.params, dense)
        return self._gradient_ahead(self._data, dense, state, carry.task, self._window_steps(carry))

    @cached_property
    def _gradient_ahead(self) -> Any:
        def gradient(data: Any, params: Params, state: State, task: Any, steps: int) -> Params:
            _, window = self.task.window(data, task, steps)
            state = self.algorithm.reset(state, window.is_start)
            return self.algorithm.grad(params, state, window.xs, window.targets)[0].grads

        return jax.jit(gradient, static_argnums=4)

    @cached_property
    def _data(self) -> Any:
        return self.task.data

    @cached_property
    def _programs(self) -> dict[tuple[int, Any], Any]:
        return {}

    def _window_steps(self, carry: Carry) -> int:
        """Steps of a window: a number that depends on the carry alone, so that a resumed run takes the same."""
        if self.update_every is not None:
            return self.update_every
        steps = self.task.sequence_steps(carry.task)
        assert steps is not None
        return -(-int(steps) // PADDED_TO) * PADDED_TO

    def _program(self, steps: int, carry: Carry) -> Any:
        leaves, structure = jax.tree.flatten(carry)
        signature = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if (steps, signature) not in self._programs:
            for key in [key for key in self._programs if key[1] != signature]:
                del self._programs[key]  # patterns that have changed do not come again
            loop = jax.jit(lambda data, carry, tokens: self._loop(data, carry, tokens, steps), donate_argnums=1)
            self._programs[steps, signature] = loop.lower(self._data, carry, jnp.int32(0)).compile()
        return self._programs[steps, signature]

    def _loop(self, data: Any, carry: Carry, tokens: jax.Array, steps: int) -> tuple[Carry, _Counts]:
        plasticity = self._plasticity

        def going_on(both: tuple[Carry, _Counts]) -> jax.Array:
            carry, counts = both
            go = counts.finite & (counts.tokens < tokens)
            if plasticity is not None:
                go &= ~plasticity.is_due(carry.wiring)
            if self.update_every is None:  # sequences may have outgrown the window
                longest = self.task.sequence_steps(carry.task)
                assert longest is not None  # `start` has seen to it
                go &= longest <= steps
            return go

        def update(both: tuple[Carry, _Counts]) -> tuple[Carry, _Counts]:
            (params, opt_state, state, task, wiring), counts = both
            task, window = self.task.window(data, task, steps)
            before = self.algorithm.reset(state, window.is_start)
            gradient, state = self.algorithm.grad(params, before, window.xs, window.targets)
            grads = gradient.grads
            if plasticity is not None:
                wiring = plasticity.observe(wiring, params, before, window, gradient.info.deltas)
                grads = plasticity.mask(wiring, grads)
            updates, opt_state = self.optimiser.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            if plasticity is not None:
                params = plasticity.mask(wiring, params)
            bits = gradient.info.losses.astype(jnp.float32) * BITS  # [T, B]
            carry = Carry(params, opt_state, state, self.task.learn(task, bits), wiring)
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


def _network(carry: Carry) -> Network:
    return Network(carry.params, carry.opt_state, carry.state, carry.wiring)
