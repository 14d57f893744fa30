"""Random numbers of `jax.random`, to the same bits, without a loop inside.

On CPU, JAX computes Threefry in a loop of five rounds. For a few numbers the loop takes many times as long as the
arithmetic: the copy task has seven draws a step, in a trace most of what training added to the demo's network. A key
that went through `unrolled` makes the same keys and the same numbers in straight-line code, and so do its children.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl, threefry_prng_impl

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of Threefry-2x32 (Salmon et al. 2011)
PARITY = np.uint32(0x1BD11BDA)


def unrolled(key: jax.Array) -> jax.Array:
    """The key in the form that is computed without loops; unchanged if it is not one of JAX's default ones."""
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    is_default = is_typed and jax.random.key_impl(key) == "threefry2x32"
    is_partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]  # known at run time only
    if not is_default or not is_partitionable:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


def _threefry(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The block cipher: a key [2] and counters of 64 bits, in halves, to as many random words."""
    words = key[0], key[1], key[0] ^ key[1] ^ PARITY
    a, b = high + words[0], low + words[1]
    for turn in range(5):
        for distance in ROTATIONS[turn % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(distance)) | (b >> np.uint32(32 - distance)))
        a, b = a + words[(turn + 1) % 3], b + words[(turn + 2) % 3] + np.uint32(turn + 1)
    return a, b


def _counted(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    if math.prod(shape) >= 1 << 32:
        raise ValueError(f"`shape` must have fewer than 2^32 elements, got {shape}")
    low = jnp.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    return _threefry(key, jnp.zeros_like(low), low)


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.stack(_counted(key, shape), axis=-1)


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    low = jnp.asarray(data, np.uint32)
    return jnp.stack(_threefry(key, jnp.zeros_like(low), low))


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    high, low = _counted(key, shape)
    if bit_width == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return (high ^ low).astype(f"uint{bit_width}")


_UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32 without loops",
    tag="unrolled",
)
