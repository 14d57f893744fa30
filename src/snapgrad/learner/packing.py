"""The arrays of a learner as few: each costs a call a microsecond or two, small ones as much as large ones.

Large arrays stay as they are, because programs overwrite them where they stand. Small ones become one array of words.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from snapgrad.learner import dispatch

LARGE = 4096  # elements
WORD = jnp.dtype("uint32")


class Packing:
    """From a tree of arrays to a list of them, and back."""

    def __init__(self, tree: Any) -> None:
        """For trees like this one."""
        leaves, self._structure = jax.tree.flatten(tree)
        self._like = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

    def pack(self, tree: Any) -> list[jax.Array]:
        """The large arrays, and then the words of the others."""
        leaves = jax.tree.leaves(tree)
        words = dispatch.as_one_kernel(_all_words)(*filter(_is_small, leaves))
        return [*(leaf for leaf in leaves if not _is_small(leaf)), words]

    def unpack(self, arrays: list[jax.Array]) -> Any:
        """The tree again."""
        *large, words = arrays
        of_words, of_large = iter(dispatch.as_one_kernel(self._small)(words)), iter(large)
        leaves = [next(of_words if _is_small(like) else of_large) for like in self._like]
        return jax.tree.unflatten(self._structure, leaves)

    def _small(self, words: jax.Array) -> list[jax.Array]:
        leaves, at = [], 0
        for like in filter(_is_small, self._like):
            count = like.size * _words_each(like.dtype)
            leaves.append(_from_words(words[at : at + count], like))
            at += count
        return leaves


def _is_small(leaf: Any) -> bool:
    return leaf.size < LARGE and (leaf.dtype == bool or (_is_number(leaf.dtype) and leaf.dtype.itemsize in (4, 8)))


def _is_number(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def _words_each(dtype: Any) -> int:
    return 2 if dtype.itemsize == 8 else 1


def _all_words(*leaves: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.zeros(0, WORD), *map(_words, leaves)])


def _words(leaf: jax.Array) -> jax.Array:
    if leaf.dtype == bool:
        return leaf.astype(WORD).reshape(-1)
    return jax.lax.bitcast_convert_type(leaf, WORD).reshape(-1)


def _from_words(words: jax.Array, like: Any) -> jax.Array:
    if like.dtype == bool:
        return words.astype(bool).reshape(like.shape)
    shape = like.shape if _words_each(like.dtype) == 1 else (*like.shape, 2)
    return jax.lax.bitcast_convert_type(words.reshape(shape), like.dtype)
