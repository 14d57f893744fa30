"""A weight matrix as values plus pattern, and its product with a vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
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

    def __post_init__(self) -> None:
        # `values` are checked where they are used: JAX makes matrices of whatever it keeps in a pytree.
        if not isinstance(self.pattern, Pattern):
            raise TypeError(f"`pattern` must be a sg.Pattern, got {type(self.pattern).__name__}")

    @classmethod
    def from_coordinates(cls, rows: Any, cols: Any, values: Any, shape: tuple[int, int]) -> SparseMatrix:
        """The matrix with `values[n]` at (`rows[n]`, `cols[n]`), in any order, every entry once."""
        pattern, values = Pattern(rows, cols, shape), arguments.array("values", values)
        if values.shape != (pattern.nnz,):
            raise ValueError(f"`values` must have one value an entry, shape {(pattern.nnz,)}, got {values.shape}")
        return cls(values[np.lexsort((np.asarray(cols), np.asarray(rows)))], pattern)

    @classmethod
    def from_dense(cls, dense: Any, mask: Any = None) -> SparseMatrix:
        """Keeps the entries of `dense` where the boolean `mask` is True; all of them without a mask."""
        dense = arguments.array("dense", dense)
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
        self.check()
        if self.pattern.is_full:
            return self.values.reshape(self.shape)
        zeros = jnp.zeros(self.shape[0] * self.shape[1], self.values.dtype)
        return zeros.at[self.pattern.flat].set(self.values, unique_indices=True).reshape(self.shape)

    def __matmul__(self, x: jax.Array) -> jax.Array:
        """The product with a vector [cols] that visits the pattern's entries only."""
        x = self.checked_factor(x)
        if self.pattern.is_full:
            return self.to_dense() @ x
        # Padding points at an appended zero, never at a real entry: sparsity detection (asdex) sees the exact pattern.
        table = self.pattern.by_row
        return jnp.sum(append_zero(self.values)[table.entry] * append_zero(x)[table.other], axis=-1)

    def column(self, index: jax.Array) -> jax.Array:
        """One column [rows]: the product with a one-hot vector that is never made; zeros for an index out of range."""
        self.check()
        index = as_index(index)
        if self.pattern.is_full:
            return _pick(self.to_dense().T, index, 0)
        table = self.pattern.by_column
        values = append_zero(self.values)[_pick(jnp.asarray(table.entry), index, self.pattern.nnz)]
        rows = _pick(jnp.asarray(table.other), index, self.shape[0])
        return jnp.zeros(self.shape[0], values.dtype).at[rows].add(values, mode="drop")

    def check(self) -> None:
        """Refuses values that are not a vector with one value an entry of the pattern."""
        if not isinstance(self.values, jax.Array | np.ndarray) or self.values.shape != (self.pattern.nnz,):
            raise ValueError(
                f"`values` of {self} must be an array of shape {(self.pattern.nnz,)}, got {describe(self.values)}"
            )

    def checked_factor(self, x: Any) -> jax.Array:
        """`x`, if it is a vector that can be multiplied by this matrix."""
        self.check()
        x = arguments.array("x", x)
        if x.shape != (self.shape[1],):
            raise ValueError(f"`x` must have shape {(self.shape[1],)} to be multiplied by {self}, got {x.shape}")
        return x

    def __repr__(self) -> str:
        return f"SparseMatrix({getattr(self.values, 'dtype', '?')}, {self.pattern})"


def multiply(matrix: Any, x: Any) -> jax.Array:
    """`matrix`, sparse or an array, times a vector, or its column `x` where `x` is an integer index (a one-hot)."""
    x = arguments.array("x", x)
    if not isinstance(matrix, SparseMatrix):
        matrix = arguments.array("matrix", matrix)
        if matrix.ndim != 2:
            raise ValueError(f"`matrix` must be a SparseMatrix or a 2-D array, got {describe(matrix)}")
    rows, cols = matrix.shape
    if jnp.issubdtype(x.dtype, jnp.integer):
        if x.ndim:
            raise ValueError(f"`x` must be a float vector [{cols}] or one integer, got {describe(x)}")
        return matrix.column(x) if isinstance(matrix, SparseMatrix) else _pick(matrix.T, as_index(x), 0)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"`x` must be a float vector [{cols}] or one integer, got {describe(x)}")
    if x.shape != (cols,):
        name = matrix if isinstance(matrix, SparseMatrix) else f"a matrix of shape {(rows, cols)}"
        raise ValueError(f"`x` must have shape {(cols,)} to be multiplied by {name}, got {x.shape}")
    return matrix @ x


def as_index(x: jax.Array) -> jax.Array:
    """Integers of any width as int32, in which every index is compared and gathered; -1 for those that do not fit.

    Everything that reads an integer input goes through here: in a narrow type an index past its range would wrap round.
    """
    x = jnp.asarray(x)
    if x.dtype == jnp.int32:
        return x
    if jnp.iinfo(x.dtype).max <= jnp.iinfo(jnp.int32).max:
        return x.astype(jnp.int32)
    fits = (x >= 0) & (x <= jnp.iinfo(jnp.int32).max)
    return jnp.where(fits, x.astype(jnp.int32), -1)


def describe(value: Any) -> str:
    """What a value is, for a message: dtype and shape of an array, or a type."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__


def map_matrices(function: Callable[[SparseMatrix], Any], params: Any) -> Any:
    """`params` with `function` applied to every sparse matrix in it."""
    is_matrix = lambda leaf: isinstance(leaf, SparseMatrix)  # noqa: E731
    return jax.tree.map(lambda leaf: function(leaf) if is_matrix(leaf) else leaf, params, is_leaf=is_matrix)


def densify(matrix: SparseMatrix) -> SparseMatrix:
    """The same matrix with a full pattern, zeros where there was none; gradients still land on the values."""
    return SparseMatrix(matrix.to_dense().reshape(-1), Pattern.full(matrix.shape))


def _pick(rows: jax.Array, index: jax.Array, fill: int) -> jax.Array:
    if not len(rows):
        return jnp.full(rows.shape[1:], fill, rows.dtype)
    # Not as NumPy indexes: -1 is padding to many, and must not mean the last column.
    return rows.at[index].get(mode="fill", fill_value=fill, wrap_negative_indices=False)


def append_zero(x: jax.Array) -> jax.Array:
    """`x` with a zero behind its last axis: what padding, one past the end, points at."""
    return jnp.concatenate([x, jnp.zeros((*x.shape[:-1], 1), x.dtype)], axis=-1)
