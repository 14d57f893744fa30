"""A learner with more outputs goes on from one with fewer, as where a class appears that was never seen.

The cell, its state and its influence are the same. Of the readout, and of what the optimiser keeps for it, the part
that was there stays in the leading rows and columns; what is new starts as in a fresh learner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.flatten_util import ravel_pytree

if TYPE_CHECKING:
    from snapgrad.learner.online import OnlineLearner


def widen(learner: OnlineLearner, fresh: OnlineLearner) -> None:
    """Makes `fresh`, which has more outputs and the same other settings, go on from where `learner` is."""
    old, new = learner._carry(), fresh._carry()
    params = jax.tree.map(_overlay, new.params, old.params)
    # What is kept of all parameters in one vector (optax.flatten) is put back into their shapes.
    (new_flat, new_shaped), (old_flat, old_shaped) = (ravel_pytree(carry.params) for carry in (new, old))

    def overlay(new: jax.Array, old: jax.Array) -> jax.Array:
        if new.shape != new_flat.shape or old.shape != old_flat.shape:
            return _overlay(new, old)
        return ravel_pytree(jax.tree.map(_overlay, new_shaped(new), old_shaped(old)))[0]

    fresh._go_on(old._replace(params=params, opt_state=jax.tree.map(overlay, new.opt_state, old.opt_state)))
    fresh._seen, fresh._events, fresh._warned = learner._seen, learner._events, learner._warned


def _overlay(new: jax.Array, old: jax.Array) -> jax.Array:
    """The old values in the leading corner of the new ones."""
    return new.at[tuple(slice(size) for size in old.shape)].set(old)
