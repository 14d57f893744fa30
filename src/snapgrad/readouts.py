"""What turns a network's output h into the logits of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from snapgrad.algorithms.interface import Loss
from snapgrad.tasks.base import PADDING


@dataclass(frozen=True)
class Readout:
    """Layers of the given widths with ReLU between them: () is linear, (1024,) is the paper's language model's.

    Parameters are a list of (weight [out, in], bias [out]).
    """

    classes: int
    hidden: tuple[int, ...] = ()

    def init(self, key: jax.Array, units: int) -> list[tuple[jax.Array, jax.Array]]:
        """Weights uniform in +-1/sqrt(inputs of the layer), biases zero."""
        widths = (units, *self.hidden, self.classes)
        layers = []
        for own, fan_in, fan_out in zip(jax.random.split(key, len(widths) - 1), widths, widths[1:], strict=False):
            bound = fan_in**-0.5
            layers.append((jax.random.uniform(own, (fan_out, fan_in), minval=-bound, maxval=bound), jnp.zeros(fan_out)))
        return layers

    def logits(self, params: Any, h: jax.Array) -> jax.Array:
        """The logits [classes] of one example."""
        # Not weight @ h: over a batch, the large products would come out transposed, and be turned round in memory.
        for weight, bias in params[:-1]:
            h = jax.nn.relu(h @ weight.T + bias)
        weight, bias = params[-1]
        return h @ weight.T + bias

    @property
    def loss(self) -> Loss:
        """Cross-entropy in nats, and nothing where nothing is asked."""

        def loss(params: Any, h: jax.Array, target: jax.Array) -> jax.Array:
            nats = optax.softmax_cross_entropy_with_integer_labels(self.logits(params, h), jnp.maximum(target, 0))
            return jnp.where(target == PADDING, 0, nats)

        return loss
