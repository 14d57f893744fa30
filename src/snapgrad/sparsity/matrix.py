"""A weight matrix as values plus pattern, and its product with a vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad.sparsity.pattern import Pattern


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """The values [nnz] of a matrix at its pattern, row-major; a dense matrix is one with a full pattern.

    Only `values` is a leaf, so gradients, Optax state and checkpoints are of size nnz. The pattern is static. That leaf
    is a vector: to tell weights from biases, as for weight decay, go by the fields of the parameters, not by rank.
    """

    values: Any  # an array; JAX also keeps shapes and cotangents here
    pattern: Pattern = field(metadata={"static": True})

    @classmethod
    def from_dense(cls, dense: Any, mask: Any = None) -> SparseMatrix:
        """Keeps the entries of `dense` where the boolean `mask` is True; all of them without a mask."""
        dense = jnp.asarray(dense)
        if dense.ndim != 2:
            raise ValueError(f"`dense` must be a matrix, got shape {dense.shape}")
        pattern = Pattern.full(dense.shape) if mask is None else Pattern.from_mask(mask)
        if pattern.shape != dense.shape:
            raise ValueError(f"`mask` must have the matrix's shape {dense.shape}, got {pattern.shape}")
        return cls(dense.reshape(-1) if pattern.is_full else dense[pattern.rows, pattern.cols], pattern)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    def to_dense(self) -> jax.Array:
        """The matrix as a dense array, zero outside the pattern."""
        if self.pattern.is_full:
            return self.values.reshape(self.shape)
        zeros = jnp.zeros(self.shape[0] * self.shape[1], self.values.dtype)
        return zeros.at[self.pattern.flat].set(self.values, unique_indices=True).reshape(self.shape)

    def __matmul__(self, x: jax.Array) -> jax.Array:
        """The product with a vector [cols] that visits the pattern's entries only."""
        if x.shape != (self.shape[1],):
            raise ValueError(f"`x` must have shape {(self.shape[1],)} to be multiplied by {self}, got {x.shape}")
        if self.pattern.is_full:
            return self.to_dense() @ x
        # Padding points at an appended zero, never at a real entry: sparsity detection (asdex) sees the exact pattern.
        table = self.pattern.by_row
        return jnp.sum(append_zero(self.values)[table.entry] * append_zero(x)[table.other], axis=-1)

    def column(self, index: jax.Array) -> jax.Array:
        """One column [rows]: the product with a one-hot vector that is never made; zeros for an index out of range."""
        if self.pattern.is_full:
            return _pick(self.to_dense().T, index, 0)
        table = self.pattern.by_column
        values = append_zero(self.values)[_pick(jnp.asarray(table.entry), index, self.pattern.nnz)]
        rows = _pick(jnp.asarray(table.other), index, self.shape[0])
        return jnp.zeros(self.shape[0], values.dtype).at[rows].add(values, mode="drop")

    def __repr__(self) -> str:
        return f"SparseMatrix({getattr(self.values, 'dtype', '?')}, {self.pattern})"


def multiply(matrix: Any, x: jax.Array) -> jax.Array:
    """`matrix`, sparse or an array, times a vector, or its column `x` where `x` is an integer index (a one-hot)."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return matrix @ x
    return _pick(jnp.asarray(matrix).T, x, 0) if isinstance(matrix, jax.Array | np.ndarray) else matrix.column(x)


def map_matrices(function: Callable[[SparseMatrix], Any], params: Any) -> Any:
    """`params` with `function` applied to every sparse matrix in it."""
    is_matrix = lambda leaf: isinstance(leaf, SparseMatrix)  # noqa: E731
    return jax.tree.map(lambda leaf: function(leaf) if is_matrix(leaf) else leaf, params, is_leaf=is_matrix)


def densify(matrix: SparseMatrix) -> SparseMatrix:
    """The same matrix with a full pattern, zeros where there was none; gradients still land on the values."""
    return SparseMatrix(matrix.to_dense().reshape(-1), Pattern.full(matrix.shape))


def _pick(rows: jax.Array, index: jax.Array, fill: int) -> jax.Array:
    # Not as NumPy indexes: -1 is padding to many, and must not mean the last column.
    return rows.at[index].get(mode="fill", fill_value=fill, wrap_negative_indices=False)


def append_zero(x: jax.Array) -> jax.Array:
    """`x` with a zero behind its last axis: what padding, one past the end, points at."""
    return jnp.concatenate([x, jnp.zeros((*x.shape[:-1], 1), x.dtype)], axis=-1)
