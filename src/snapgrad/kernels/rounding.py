"""Stochastic rounding of J to bfloat16, the same bits wherever it is computed (native/rounding.h draws alike).

Rounded to the nearest, J would stop growing where a step adds less than half of its last bit, and stop decaying
likewise. So chance decides: with f the part that is cut off, in units of the last bit kept, J is rounded away from zero
where a draw u in [0, 1) has u >= 1 - f. The mean is exact, whatever f is.

u is a hash of the seed, the step, the lane and the entry's number in J [states, params]: nothing is stored for an
entry, and the result depends neither on threads nor on how J is laid out. In every 16 steps the draws of an entry are
16 equidistant points in random order, from a random phase. Each is uniform all the same; but what one step rounds up,
others round down, and errors add up more slowly than independent ones do (docs/performance.md has the figures).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_GOLDEN = np.uint32(0x9E3779B9)  # odd, 2^32 over the golden ratio: sets neighbouring numbers far apart


def start(key: jax.Array | None) -> jax.Array:
    """Seed and step, [2]: what all draws of one stream follow from."""
    seed = jnp.zeros((), jnp.uint32) if key is None else jax.random.bits(key, (), jnp.uint32)
    return jnp.stack([seed, jnp.zeros((), jnp.uint32)])


def advance(state: jax.Array, steps: int) -> jax.Array:
    """The state after so many steps; after 2^32 the draws repeat."""
    return state + np.array([0, steps], np.uint32)


def noise(state: jax.Array, steps: int, batch_size: int) -> jax.Array:
    """What `influence_step` draws from at each of the next steps, [steps, 2, B]: a word of the lane, and its turn.

    The word is the lane's own for 16 steps; the turn is which of the 16 points comes now, in the highest four bits.
    """
    seed, first = state
    step = (first + jnp.arange(steps, dtype=jnp.uint32))[:, None]
    lane = jnp.arange(batch_size, dtype=jnp.uint32)[None]
    word = _mix(_mix(_mix(seed) + (step >> 4) * _GOLDEN) + lane * _GOLDEN)
    turn = (step & 15) * (word | 1) << 28  # an odd stride goes through all of them
    return jnp.stack([word, turn], axis=1)


def draw(word: jax.Array, turn: jax.Array, entry: Any) -> jax.Array:
    """The bits to be added to the entries of J with these numbers, below 2^16."""
    return (_mix(word ^ entry * _GOLDEN) + turn) >> 16


@jax.custom_jvp
def to_bfloat16(values: jax.Array, bits: jax.Array) -> jax.Array:
    """float32 rounded by the given bits. What is finite stays so; infinities and NaN are kept."""
    wide = jax.lax.bitcast_convert_type(values, jnp.uint32)
    below_largest = (wide & 0x7FFFFFFF) < np.uint32(0x7F7F0000)
    quiet = jnp.where(jnp.isnan(values), np.uint32(0x400000), np.uint32(0))  # or its upper half may be an infinity
    rounded = jnp.where(below_largest, wide + bits, wide | quiet)
    return jax.lax.bitcast_convert_type((rounded >> 16).astype(jnp.uint16), jnp.bfloat16)


@to_bfloat16.defjvp
def _to_bfloat16_jvp(primals: Any, tangents: Any) -> Any:
    return to_bfloat16(*primals), tangents[0].astype(jnp.bfloat16)  # of the mean, which is the value


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32 bits in which every bit depends on all (lowbias32, Wellons 2018)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)
