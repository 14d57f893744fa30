"""Keeps a stream's bad values out of the weights, the optimiser's state and the influence.

All of it is part of the compiled step. What is done is counted, in the order of `EVENTS`.

    values       not finite, or beyond a limit: read as zero and not learnt from, or clipped
    updates      that would leave a weight or the optimiser's state not finite: not made
    state        of a lane, not finite: the lane starts anew
    influence    not finite: forgotten; beyond a limit: told, scaled back or forgotten, as configured

The influence is looked at every `WATCH_EVERY` steps, because that reads all of it, and whenever the gradient is not
finite: it is the product of dL/dh with the influence, and shows what is broken there. Its largest magnitude is searched
for only where the sum of its squares, which costs less, does not rule out that it is too large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from snapgrad import arguments
from snapgrad.algorithms.interface import Algorithm, State
from snapgrad.kernels.native import settled

BadValues = Literal["skip", "clip"]
InfluenceGrowth = Literal["warn", "decay", "reset"]

WATCH_EVERY = 16  # steps


class Events(NamedTuple):
    """What the guards had to do, as counts."""

    skipped: Any = 0  # samples that nothing was learnt from: a value of x or y was bad, or there was no y
    clipped: Any = 0  # samples with values that were clipped
    rejected: Any = 0  # updates that were not made, because something would not have been finite after them
    restarted: Any = 0  # lanes that began anew, because their state was not finite
    grown: Any = 0  # times the influence was found beyond its limit, or not finite


@dataclass(frozen=True)
class Guards:
    """How much is too much, and what is done then."""

    limit: float | None
    bad_values: BadValues
    influence_limit: float
    influence_growth: InfluenceGrowth

    def __post_init__(self) -> None:
        if self.limit is not None:
            arguments.positive_number("limit", self.limit)
        arguments.positive_number("influence_limit", self.influence_limit)
        for name, choices in (("bad_values", BadValues), ("influence_growth", InfluenceGrowth)):
            if (value := getattr(self, name)) not in get_args(choices):
                known = ", ".join(f'"{choice}"' for choice in get_args(choices))
                raise ValueError(f"`{name}` must be one of {known}, got {arguments.shown(value)}")

    def clean(self, values: Any) -> tuple[Any, jax.Array, jax.Array]:
        """Values [B, ...], any pytree, without bad ones; and which lanes [B] had bad ones, and which had a NaN."""
        lanes = jax.tree.leaves(values)[0].shape[0]
        bad, missing = jnp.zeros(lanes, bool), jnp.zeros(lanes, bool)
        cleaned = []
        for leaf in jax.tree.leaves(values):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                limit = jnp.asarray(jnp.finfo(leaf.dtype).max if self.limit is None else self.limit, leaf.dtype)
                is_bad, is_missing = ~(jnp.abs(leaf) <= limit), jnp.isnan(leaf)
                bad |= is_bad.reshape(lanes, -1).any(axis=1)
                missing |= is_missing.reshape(lanes, -1).any(axis=1)
                instead = jnp.clip(leaf, -limit, limit) if self.bad_values == "clip" else jnp.zeros_like(leaf)
                leaf = jnp.where(is_bad, jnp.where(is_missing, 0, instead), leaf)
            cleaned.append(leaf)
        return jax.tree.unflatten(jax.tree.structure(values), cleaned), bad, missing

    def watch(
        self, algorithm: Algorithm, state: State, due: jax.Array, broken: jax.Array
    ) -> tuple[State, jax.Array, jax.Array]:
        """The state with a bounded influence, if that is due; how many lanes began anew; whether it had grown.

        `broken` [B] are the lanes whose state is not finite.
        """

        def look(state: State) -> tuple[State, jax.Array, jax.Array]:
            whole = algorithm.reset(state, broken)
            memory, fresh = settled(whole.memory), settled(algorithm.reset(state, jnp.ones_like(broken)).memory)
            largest = _largest(memory)
            limit = jnp.asarray(min(self.influence_limit, float(jnp.finfo(largest.dtype).max)), largest.dtype)
            grown = ~(largest <= limit)
            if self.influence_growth == "decay":
                memory = _scaled(memory, jnp.where(grown, limit / largest, 1))
            forget = grown if self.influence_growth == "reset" else ~jnp.isfinite(largest)
            memory = jax.tree.map(lambda new, old: jnp.where(forget, new, old), fresh, memory)
            return State(whole.cell, memory, state.origin), jnp.sum(broken, dtype=jnp.int32), grown

        def may_be_large(memory: Any) -> jax.Array:
            most = float(jnp.finfo(jnp.float32).max) ** 0.5
            return ~(_squares(memory) <= jnp.float32(min(self.influence_limit, most) ** 2))

        large = jax.lax.cond(due, may_be_large, lambda memory: jnp.array(False), state.memory)
        return jax.lax.cond(large | broken.any(), look, lambda state: (state, jnp.int32(0), jnp.array(False)), state)


def is_finite(tree: Any) -> jax.Array:
    """Whether all floating-point numbers of a tree are finite, and so is the sum of their squares."""
    return jnp.isfinite(_squares(tree))


def broken_lanes(state: Any) -> jax.Array:
    """Which lanes [B] of a cell's state are not finite."""
    leaves = jax.tree.leaves(state)
    return jnp.stack([~jnp.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in leaves]).any(axis=0)


def _squares(tree: Any) -> jax.Array:
    """The sum of all squares. One product a leaf: XLA takes other reductions apart into many small ones."""
    return sum((jnp.vdot(leaf, leaf).astype(jnp.float32) for leaf in _floats(tree)), jnp.float32(0))


def _floats(tree: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def _largest(memory: Any) -> jax.Array:
    """The largest magnitude of an algorithm's memory; NaN or inf where it is not finite, 0 where it has none."""
    found = [jnp.max(jnp.abs(leaf)).astype(jnp.float32) for leaf in _floats(memory)]
    return jnp.max(jnp.stack([jnp.float32(0), *found]))


def _scaled(memory: Any, factor: jax.Array) -> Any:
    is_float = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)  # noqa: E731
    return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype) if is_float(leaf) else leaf, memory)
