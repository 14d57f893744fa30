"""A learner with more outputs goes on from one with fewer, as where a class appears that was never seen.

The cell, its state and its influence are the same. Of the readout, and of what the optimiser keeps for it, the part
that was there stays in the leading rows and columns; what is new starts as in a fresh learner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from snapgrad.learner.online import OnlineLearner


def widen(learner: OnlineLearner, fresh: OnlineLearner) -> None:
    """Makes `fresh`, which has more outputs and the same other settings, go on from where `learner` is."""
    old, new = learner._carry(), fresh._carry()
    merged = jax.tree.map(_overlay, (new.params, new.opt_state), (old.params, old.opt_state))
    fresh._go_on(old._replace(params=merged[0], opt_state=merged[1]))
    fresh._seen, fresh._events, fresh._warned = learner._seen, learner._events, learner._warned


def _overlay(new: jax.Array, old: jax.Array) -> jax.Array:
    """The old values in the leading corner of the new ones."""
    return new.at[tuple(slice(size) for size in old.shape)].set(old)
