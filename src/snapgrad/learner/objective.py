"""From the cell's output h to a prediction, and what a prediction costs.

"squared"         the mean of (prediction - y)^2 over the outputs
"cross_entropy"   -log of the probability of class y, in nats; the prediction is all classes' probabilities
a function        (prediction, y) -> scalar, of one example
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from snapgrad import arguments
from snapgrad.readouts import Readout

NAMED = ("squared", "cross_entropy")


@dataclass(frozen=True)
class Objective:
    """A readout with its loss, as an algorithm takes it: (params, h, (y, asked)) -> scalar."""

    readout: Readout
    loss: str | Callable[[jax.Array, Any], jax.Array]

    def __post_init__(self) -> None:
        if not callable(self.loss) and self.loss not in NAMED:
            given = arguments.shown(self.loss)
            raise ValueError(
                f'`loss` must be "squared", "cross_entropy" or a function of (prediction, target), got {given}'
            )
        if self.is_classifier and self.readout.classes < 2:
            raise ValueError(f'`outputs` must be an integer >= 2 with loss="cross_entropy", got {self.readout.classes}')

    @property
    def is_classifier(self) -> bool:
        """Whether targets are classes, and predictions their probabilities."""
        return self.loss == "cross_entropy"

    def output(self, params: Any, h: jax.Array) -> jax.Array:
        """What the readout says of one example: [outputs], or a scalar where there is one output."""
        out = self.readout.logits(params, h)
        return out[0] if self.readout.classes == 1 else out

    def prediction(self, params: Any, h: jax.Array) -> jax.Array:
        """What a person is told: the output, or the classes' probabilities."""
        out = self.output(params, h)
        return jax.nn.softmax(out) if self.is_classifier else out

    def __call__(self, params: Any, h: jax.Array, target: tuple[Any, jax.Array]) -> jax.Array:
        """The loss of one example; nothing where nothing is asked."""
        y, asked = target
        # The output too: where nothing is asked the loss may have an infinite derivative, and 0 times that is NaN.
        out = jnp.where(asked, self.output(params, h), 0)
        return jnp.where(asked, self._value(out, y), 0)

    def _value(self, out: jax.Array, y: Any) -> jax.Array:
        if callable(self.loss):
            return self.loss(out, y)
        if self.is_classifier:
            return optax.softmax_cross_entropy_with_integer_labels(out, jnp.maximum(y, 0))
        return jnp.mean(jnp.square(out - y))
