"""The optimiser that the options name: one of Optax, with clipping, a schedule and weight decay around it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from snapgrad import arguments, optimisers
from snapgrad.algorithms.interface import Params
from snapgrad.runs.options import Options
from snapgrad.runs.schedule import learning_rate
from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.tasks.base import Task


def optimiser(options: Options, task: Task) -> optax.GradientTransformation:
    """Clips, then updates as the optimiser does, then decays the weights; refuses what Optax would not take."""
    call = optimisers.parse(options.optimiser)
    arguments.positive_number("learning_rate", options.learning_rate)
    rate = learning_rate(options, task)
    parts = [optimisers.make(call, rate)]
    if options.clip is not None:
        arguments.positive_number("clip", options.clip)
        parts.insert(0, optax.clip_by_global_norm(options.clip))
    if options.weight_decay is not None:
        arguments.positive_number("weight_decay", options.weight_decay)
        # Behind the optimiser, which has the learning rate in its updates already: the decay needs one of its own.
        decay = -options.weight_decay
        scaled = (lambda count: decay * rate(count)) if callable(rate) else decay * rate
        parts.append(optax.add_decayed_weights(scaled, mask=_is_weight))
    whole = optax.chain(*parts) if len(parts) > 1 else parts[0]
    return skip_zero(whole) if options.skip_idle else whole


def skip_zero(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser, left alone by gradients that are zero everywhere: nothing was asked in their window."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        used = jnp.stack([jnp.any(leaf != 0) for leaf in jax.tree.leaves(grads)]).any()
        updates, after = inner.update(grads, state, params)
        zeros = jax.tree.map(jnp.zeros_like, updates)
        return jax.tree.map(lambda *both: jnp.where(used, *both), (updates, after), (zeros, state))

    return optax.GradientTransformation(inner.init, update)


def _is_weight(params: Params) -> Params:
    """Which parts are weight matrices, by their place: a sparse matrix's values are a vector, as a bias is."""
    is_matrix = lambda leaf: isinstance(leaf, SparseMatrix)  # noqa: E731
    return Params(
        cell=jax.tree.map(is_matrix, params.cell, is_leaf=is_matrix),
        readout=[(True, False) for _ in params.readout],
    )
