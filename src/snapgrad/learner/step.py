"""Predict, then learn: one sample of every lane, as a pure function of arrays.

Predictions, losses and events come back in one vector: reading one array from Python costs less than reading three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from snapgrad.algorithms.base import batched_step
from snapgrad.algorithms.interface import Algorithm, Params, State
from snapgrad.learner.guards import WATCH_EVERY, Events, Guards, broken_lanes
from snapgrad.learner.objective import Objective
from snapgrad.learner.update import Update


class Carry(NamedTuple):
    """Everything that a learner goes on from."""

    params: Params
    opt_state: optax.OptState
    state: State
    age: jax.Array  # samples before this one, round 2^32


@dataclass(frozen=True, eq=False)
class Learning:
    """How a network learns from a sample."""

    algorithm: Algorithm
    objective: Objective
    update: Update
    guards: Guards

    def start(self, params: Params, lanes: int, key: jax.Array) -> Carry:
        """Before the first sample."""
        state = self.algorithm.init(params, lanes, key=key)
        return Carry(params, self.update.optimiser.init(params), state, jnp.uint32(0))

    def predict(self, carry: Carry, x: jax.Array) -> jax.Array:
        """The predictions [B, ...] for x [B, ...], as `learn` would make them."""
        return self.ahead(carry)(carry.state.cell, x)[1]

    def ahead(self, carry: Carry) -> Callable[[Any, jax.Array], tuple[Any, jax.Array]]:
        """The function (s_tm1, x_t) -> s_t and the prediction, with the weights as they are."""
        step = batched_step(carry.state.origin.kernel, self.algorithm.cell, carry.params.cell)

        def predict(s: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            s, h = step(s, self.guards.clean(x)[0])
            return s, jax.vmap(self.objective.prediction, in_axes=(None, 0))(carry.params.readout, h)

        return predict

    def learn(self, carry: Carry, x: jax.Array, y: Any) -> tuple[Carry, jax.Array]:
        """One step of every lane. Returns predictions [B, ...], losses [B] and events in one vector."""
        params, opt_state, state, age = carry
        x, bad_x, _ = self.guards.clean(x)
        y, bad_y, no_y = self.guards.clean(y)
        clips = self.guards.bad_values == "clip"
        asked = ~no_y if clips else ~(bad_x | bad_y)
        if self.objective.is_classifier:
            asked &= y >= 0
        gradient, state = self.algorithm.grad(params, state, x[None], _one_step((y, asked)))
        predictions = jax.vmap(self.objective.prediction, in_axes=(None, 0))(params.readout, gradient.info.outputs[0])
        is_asked = asked.any()
        losses = jnp.where(asked, gradient.info.losses[0], jnp.nan)
        seen = jnp.concatenate([predictions.reshape(-1), losses])
        kernel, grads = state.origin.kernel, gradient.grads
        params, opt_state, whole, seen = self.update(kernel, params, opt_state, grads, is_asked, seen)

        due = (age % WATCH_EVERY == WATCH_EVERY - 1) | ~whole
        state, restarted, grown = self.guards.watch(self.algorithm, state, due, broken_lanes(state.cell))
        events = Events(
            skipped=jnp.sum(~asked),
            clipped=jnp.sum((bad_x | bad_y) & clips),
            rejected=is_asked & ~whole,
            restarted=restarted,
            grown=grown,
        )
        told = jnp.concatenate([seen, jnp.stack([count.astype(seen.dtype) for count in events])])
        return Carry(params, opt_state, state, age + 1), told

    def learn_many(self, carry: Carry, xs: jax.Array, ys: Any, steps: jax.Array) -> tuple[Carry, jax.Array]:
        """`learn` for the first `steps` of xs [T, B, ...]; the vectors [T, ...] of the others are zero."""
        _, told = jax.eval_shape(self.learn, carry, *jax.tree.map(lambda leaf: leaf[0], (xs, ys)))

        def step(t: jax.Array, so_far: tuple[Carry, jax.Array]) -> tuple[Carry, jax.Array]:
            carry, out = so_far
            carry, one = self.learn(carry, *jax.tree.map(lambda leaf: leaf[t], (xs, ys)))
            return carry, out.at[t].set(one)

        return jax.lax.fori_loop(0, steps, step, (carry, jnp.zeros((len(xs), *told.shape), told.dtype)))


def _one_step(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], tree)
