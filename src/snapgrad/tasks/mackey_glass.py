"""Forecasting the Mackey-Glass equation (Mackey & Glass 1977), a standard chaotic series.

    dx/dt = 0.2 x(t - tau) / (1 + x(t - tau)^10) - 0.1 x(t)

It is integrated by Euler's method in steps of 0.1 and read at every unit of time; each lane has a past of its own.
What is read and predicted is standardised: (x - 0.93) / 0.23, the mean and the deviation over a long time for tau = 17.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from snapgrad import arguments
from snapgrad.tasks.base import Numbers, NumberTask, Window

SUBSTEPS = 10  # of a unit of time
WARMUP = 200  # units of time before the first that is read, for lanes to reach the attractor
MEAN, DEVIATION = 0.93, 0.23


class SeriesState(NamedTuple):
    """Where the lanes are."""

    past: jax.Array  # [tau * SUBSTEPS + 1, B] x, oldest first
    ahead: jax.Array  # [horizon, B] what was integrated and is not read yet, standardised


@dataclass(frozen=True)
class MackeyGlass(NumberTask):
    """Read x(t), predict x(t + horizon), in streams that never end."""

    delay: int = 17
    horizon: int = 6
    inputs = 1
    outputs = 1
    guessing = 1.0

    def __post_init__(self) -> None:
        arguments.positive_integer("delay", self.delay, 1000)
        arguments.positive_integer("horizon", self.horizon, 1000)

    def start(self, key: jax.Array, batch: int) -> SeriesState:
        first = jax.random.uniform(key, (batch,), minval=0.5, maxval=1.3)
        past = jnp.broadcast_to(first, (self.delay * SUBSTEPS + 1, batch))
        past, ahead = self._integrate(past, WARMUP + self.horizon)
        return SeriesState(past, ahead[WARMUP:])

    def window(self, data: tuple[()], state: SeriesState, steps: int) -> tuple[SeriesState, Window]:
        past, new = self._integrate(state.past, steps)
        series = jnp.concatenate([state.ahead, new])[..., None]  # [horizon + T, B, 1]
        batch = past.shape[1]
        targets = Numbers(value=series[self.horizon :], asked=jnp.ones((steps, batch), bool))
        never = jnp.zeros(batch, bool)
        after = SeriesState(past, series[steps:, :, 0])
        return after, Window(series[:steps], targets, never, jnp.int32(steps * batch))

    def _integrate(self, past: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
        """The past after so many units of time, and x at the end of each, standardised [steps, B]."""

        def substep(x: jax.Array, delayed: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = x + (0.2 * delayed / (1 + delayed**10) - 0.1 * x) / SUBSTEPS
            return x, x

        def unit(past: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            # The delay is longer than a unit of time, so that all of its delayed values are known.
            x, new = jax.lax.scan(substep, past[-1], past[:SUBSTEPS])
            return jnp.concatenate([past[SUBSTEPS:], new]), (x - MEAN) / DEVIATION

        return jax.lax.scan(unit, past, None, length=steps)

    def sequence_steps(self, state: SeriesState) -> None:
        return None
