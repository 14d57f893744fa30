"""What turns a network's output h into the logits of classes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from snapgrad import arguments, memory
from snapgrad.sparsity.matrix import as_index, describe
from snapgrad.tasks.base import PADDING


@dataclass(frozen=True)
class Readout:
    """Layers of the given widths with ReLU between them: () is linear, (1024,) is the paper's language model's.

    Parameters are a list of (weight [out, in], bias [out]).
    """

    classes: int
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        arguments.positive_integer("classes", self.classes)
        if not isinstance(self.hidden, tuple):
            raise TypeError(
                f"`hidden` must be a tuple of widths, such as (1024,) or (), got {arguments.shown(self.hidden)}"
            )
        for width in self.hidden:
            arguments.positive_integer("hidden", width)

    def init(self, key: jax.Array, units: int) -> list[tuple[jax.Array, jax.Array]]:
        """Weights uniform in +-1/sqrt(inputs of the layer), biases zero."""
        arguments.key("key", key)
        arguments.positive_integer("units", units)
        widths = (units, *self.hidden, self.classes)
        sizes = sum(fan_in * fan_out for fan_in, fan_out in itertools.pairwise(widths))
        itemsize = jnp.result_type(float).itemsize
        memory.check("units", f"the weights of {self}", {"parameters": float(itemsize * sizes)}, "fewer units")
        layers = []
        for own, fan_in, fan_out in zip(jax.random.split(key, len(widths) - 1), widths, widths[1:], strict=False):
            bound = fan_in**-0.5
            layers.append((jax.random.uniform(own, (fan_out, fan_in), minval=-bound, maxval=bound), jnp.zeros(fan_out)))
        return layers

    def logits(self, params: Any, h: jax.Array) -> jax.Array:
        """The logits [classes] of one example."""
        self._check(params, h)
        # Not weight @ h: over a batch, the large products would come out transposed, and be turned round in memory.
        for weight, bias in params[:-1]:
            h = jax.nn.relu(h @ weight.T + bias)
        weight, bias = params[-1]
        return h @ weight.T + bias

    def _check(self, params: Any, h: Any) -> None:
        widths = (*np.shape(h), *self.hidden, self.classes)
        wanted = [((fan_out, fan_in), (fan_out,)) for fan_in, fan_out in itertools.pairwise(widths)]
        layers = list(params) if isinstance(params, list | tuple) else []
        given = [tuple(np.shape(part) for part in jax.tree.leaves(layer)) for layer in layers]
        if given != wanted:
            raise ValueError(
                f"`params.readout` must be what {self}.init returns for these units, shapes {wanted}, "
                f"got {given or type(params).__name__}"
            )

    @property
    def loss(self) -> ReadoutLoss:
        """Cross-entropy in nats, and nothing where nothing is asked."""
        return ReadoutLoss(self)


@dataclass(frozen=True)
class ReadoutLoss:
    """The cross-entropy of a readout's logits: (params, h, target) -> nats of one example.

    A target is a class, or PADDING (-1) where nothing is asked. Others are refused; where they cannot be seen, inside
    `jit`, they are left out as padding is and counted in `grad.info.outside` (and a `Trainer` stops at the first).
    """

    readout: Readout

    def __call__(self, params: Any, h: jax.Array, target: Any) -> jax.Array:
        """The loss of one example at one step."""
        target = arguments.array("target", target)
        if target.shape != () or not jnp.issubdtype(target.dtype, jnp.integer):
            raise TypeError(f"`target` must be one integer an example and step, got {describe(target)}")
        if not isinstance(target, jax.core.Tracer):
            self.check_targets(target)
        target = as_index(target)
        is_class = (target >= 0) & (target < self.readout.classes)
        logits = self.readout.logits(params, h)
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(is_class, target, 0))
        return jnp.where(is_class, nats, 0)

    def check_targets(self, targets: jax.Array) -> None:
        """Refuses concrete targets that are neither classes nor padding."""
        found = np.asarray(targets)
        if found.size and found.dtype.kind in "iu":
            for extreme in (int(found.min()), int(found.max())):
                if extreme != PADDING and not 0 <= extreme < self.readout.classes:
                    classes = self.readout.classes
                    raise ValueError(f"`targets` must be classes in [0, {classes}) or {PADDING} (none), got {extreme}")
