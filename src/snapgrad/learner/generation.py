"""A learner that goes on by itself: every prediction is read as the next x."""

from __future__ import annotations

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.learner.samples import Samples
from snapgrad.learner.settings import Settings
from snapgrad.learner.step import Carry, Learning


def prepare(
    settings: Settings, samples: Samples, x: Any, length: int, features: Any, temperature: Any, seed: Any
) -> tuple[np.ndarray, Any]:
    """What is known of the inputs [length, B, ...], and a key a step where symbols are drawn."""
    arguments.positive_integer("length", length)
    is_number = isinstance(temperature, numbers.Real) and not isinstance(temperature, bool)
    if not is_number or not 0 <= float(temperature) < math.inf:
        raise ValueError(f"`temperature` must be a finite number >= 0, got {arguments.shown(temperature)}")
    arguments.seed(seed)
    is_classifier = settings.loss == "cross_entropy"
    if settings.symbols != is_classifier or (settings.symbols and settings.inputs != settings.outputs):
        raise ValueError(
            "`generate` must be called on a learner whose predictions can be its inputs, symbols and as many classes "
            f"or numbers and numbers, got {settings.inputs} inputs (symbols={settings.symbols}) and {settings.outputs} "
            f"outputs (loss={arguments.shown(settings.loss)})"
        )
    xs = np.repeat(samples.x(x)[None], length, axis=0)
    if settings.symbols:
        if features is not None:
            raise ValueError("`features` must be None for a learner of symbols, got an array")
        return xs, jax.random.split(jax.random.key(seed), length)
    rest = settings.inputs - settings.outputs
    if rest < 0:
        raise ValueError(
            f"`generate` must be called on a learner with at least {settings.outputs} inputs, got {settings.inputs}"
        )
    if features is not None:
        given = np.asarray(features, samples.dtype)
        wanted = (length - 1, *samples.lead, rest)
        if given.shape != wanted:
            raise ValueError(f"`features` must have shape {wanted}, got {given.shape}")
        xs[1:, :, settings.outputs :] = given.reshape(length - 1, settings.batch, rest)
    return xs, None


def generate(learning: Learning, carry: Carry, xs: jax.Array, keys: Any, temperature: jax.Array) -> jax.Array:
    """Predictions [T, B, ...], or symbols [T, B] drawn by `keys`."""
    predict = learning.ahead(carry)

    def step(before: tuple[Any, jax.Array], at_t: tuple[jax.Array, Any]) -> tuple[Any, jax.Array]:
        s, read = before
        x, key = at_t
        if key is None:
            x = jnp.where(jnp.isnan(read), x, read)
            s, predictions = predict(s, x)
            wide = predictions.reshape(len(x), -1)
            return (s, jnp.full_like(x, jnp.nan).at[:, : wide.shape[1]].set(wide)), predictions
        s, probabilities = predict(s, jnp.where(read < 0, x, read))
        drawn = _draw(key, probabilities, temperature)
        return (s, drawn), drawn

    nothing = jnp.full_like(xs[0], jnp.nan if keys is None else -1)
    return jax.lax.scan(step, (carry.state.cell, nothing), (xs, keys))[1]


def _draw(key: jax.Array, probabilities: jax.Array, temperature: jax.Array) -> jax.Array:
    # Neither a tiny probability nor a tiny temperature makes a NaN here.
    logits = jnp.log(probabilities)
    at_least = jnp.maximum(temperature, jnp.finfo(logits.dtype).tiny)
    drawn = jax.random.categorical(key, (logits - logits.max(axis=-1, keepdims=True)) / at_least)
    return jnp.where(temperature > 0, drawn, jnp.argmax(probabilities, axis=-1)).astype(jnp.int32)
