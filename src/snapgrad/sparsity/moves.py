"""Carries values from one pattern to another: an entry that stays keeps them, one that is new starts at zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from snapgrad.sparsity.matrix import SparseMatrix
from snapgrad.sparsity.pattern import Pattern

Path = tuple[Any, ...]  # keys of JAX: where a matrix stands in a pytree


class Move(NamedTuple):
    """What becomes of one matrix."""

    old: Pattern
    new: Pattern
    source: NDArray[np.int32]  # for every new entry the old one, or `old.nnz` where there was none

    @classmethod
    def between(cls, old: Pattern, new: Pattern) -> Move:
        """The move from one pattern to another of the same shape."""
        return cls(old, new, old.find(new.rows, new.cols))

    @property
    def added(self) -> int:
        """How many entries are new."""
        return int(np.count_nonzero(self.source == self.old.nnz))


def matrices(tree: Any) -> dict[Path, SparseMatrix]:
    """The sparse matrices of a pytree, by where they stand."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_matrix)
    return {path: leaf for path, leaf in found if _is_matrix(leaf)}


def carry_over(tree: Any, moves: Mapping[Path, Move]) -> Any:
    """`tree` with every matrix that moves, and every matrix of the optimiser's that mirrors one, at its new pattern.

    A matrix mirrors a parameter if its path ends with that parameter's: so do the moments of Adam, also inside of
    `optax.chain` and `optax.masked`. What an optimiser keeps in another shape than the values is left as it is.
    """

    def move(path: Path, leaf: Any) -> Any:
        found = next((moves[path[n:]] for n in range(len(path)) if path[n:] in moves), None)
        if found is None or not _is_matrix(leaf) or leaf.pattern != found.old:
            return leaf
        values = leaf.values
        if jnp.shape(values) == (found.old.nnz,):
            values = jnp.asarray(np.append(np.asarray(values), np.zeros(1, values.dtype))[found.source])
        return SparseMatrix(values, found.new)

    return jax.tree_util.tree_map_with_path(move, tree, is_leaf=_is_matrix)


def check_mirrored(opt_state: Any, params: Any) -> None:
    """Refuses an optimiser whose arrays do not stand as the parameters do: they would be left at old positions."""
    mirrored = {path for path, _ in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_matrix)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(opt_state, is_leaf=_is_matrix):
        if (_is_matrix(leaf) or jnp.ndim(leaf)) and not any(path[n:] in mirrored for n in range(len(path))):
            raise ValueError(
                "`optimiser` must keep its state in the structure of the parameters where their patterns change, got "
                f"an array {jnp.shape(leaf)} at {jax.tree_util.keystr(path)}"
            )


def parameter_sources(old: Any, new: Any) -> NDArray[np.int64]:
    """For every parameter of `new`, numbered as `ravel_pytree` does, its number in `old`; past the end where it is new.

    Both are the same pytree but for the patterns of its matrices.
    """
    leaves = [jax.tree.leaves(tree, is_leaf=_is_matrix) for tree in (old, new)]
    total = sum(_size(leaf) for leaf in leaves[0])
    sources, before = [np.zeros(0, np.int64)], 0
    for one, other in zip(*leaves, strict=True):
        if _is_matrix(one):
            source = one.pattern.find(other.pattern.rows, other.pattern.cols).astype(np.int64)
            sources.append(np.where(source < one.pattern.nnz, before + source, total))
        else:
            sources.append(before + np.arange(_size(one)))
        before += _size(one)
    return np.concatenate(sources)


def _size(leaf: Any) -> int:
    return leaf.pattern.nnz if _is_matrix(leaf) else int(np.prod(jnp.shape(leaf)))


def _is_matrix(leaf: Any) -> bool:
    return isinstance(leaf, SparseMatrix)
