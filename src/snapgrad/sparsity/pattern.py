"""The positions of a matrix's entries, without their values."""

from __future__ import annotations

import hashlib
import operator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snapgrad import arguments

# Up to this size `Pattern.find` looks entries up in a dense table (16 MiB), several times faster than searching.
TABLE_LIMIT = 1 << 22


class Table(NamedTuple):
    """A pattern laid out as a rectangle: one line a row (or column), padded to the longest.

    `entry[line, n]` is the n-th entry of that line and `other[line, n]` its column (or row). Padding has
    `entry == nnz` and `other ==` the number of columns (or rows): one past the end in both.
    """

    entry: NDArray[np.int32]
    other: NDArray[np.int32]


class Pattern:
    """Which entries of a matrix exist: immutable, row-major, hashable by content.

    A pattern is structure, never data: it is not traced, and it travels as the static part of a `SparseMatrix`.
    Equality and hash go by a digest made once, because jit compares the static parts of its arguments at every call.
    """

    def __init__(self, rows: Any, cols: Any, shape: tuple[int, int]):
        """Takes integer coordinates in any order, each once. Entries are numbered row by row, whatever the order given.

        To give values with unsorted coordinates, use `SparseMatrix.from_coordinates`.
        """
        self._fill_from(rows, cols, shape, merge=False)

    @classmethod
    def merged(cls, rows: Any, cols: Any, shape: tuple[int, int]) -> Pattern:
        """The pattern of coordinates of which some come more than once."""
        pattern = cls.__new__(cls)
        pattern._fill_from(rows, cols, shape, merge=True)
        return pattern

    def _fill_from(self, rows: Any, cols: Any, shape: tuple[int, int], *, merge: bool) -> None:
        n_rows, n_cols = _checked_shape(shape)
        rows, cols = _coordinates("rows", rows), _coordinates("cols", cols)
        if rows.shape != cols.shape or rows.ndim != 1:
            raise ValueError(
                f"`rows` and `cols` must be vectors of one length, got shapes {rows.shape} and {cols.shape}"
            )
        if rows.size and not (rows.min() >= 0 and rows.max() < n_rows and cols.min() >= 0 and cols.max() < n_cols):
            raise ValueError(f"`rows` and `cols` must lie inside `shape` {(n_rows, n_cols)}, got an index outside it")
        flat = _ascending(rows * n_cols + cols, n_rows * n_cols)
        if not merge and flat.size != rows.size:
            raise ValueError(f"`rows` and `cols` must name every entry once, got {rows.size - flat.size} repeated")
        self._fill((n_rows, n_cols), flat)

    def _fill(self, shape: tuple[int, int], flat: NDArray[np.int64] | None) -> None:
        size = shape[0] * shape[1]
        # A full pattern keeps no index at all, so that a large dense matrix costs nothing here.
        self._flat = None if flat is None or flat.size == size else _frozen(flat)
        self.shape = shape
        self.nnz = size if self._flat is None else int(self._flat.size)
        content = b"full" if self._flat is None else self._flat.tobytes()
        self._digest = hashlib.blake2b(repr(shape).encode() + content, digest_size=16).digest()
        self._hash = int.from_bytes(self._digest[:8], "little")  # not salted: the same in every process

    @classmethod
    def full(cls, shape: tuple[int, int]) -> Pattern:
        """The pattern of a dense matrix."""
        pattern = cls.__new__(cls)
        pattern._fill(_checked_shape(shape), None)
        return pattern

    @classmethod
    def diagonal(cls, size: int) -> Pattern:
        """The pattern of the identity."""
        arguments.positive_integer("size", size)
        return cls(np.arange(size), np.arange(size), (size, size))

    @classmethod
    def from_mask(cls, mask: Any) -> Pattern:
        """The pattern of a boolean matrix: True where an entry exists."""
        try:
            mask = np.asarray(mask)
        except ValueError:
            raise TypeError(f"`mask` must be a boolean matrix, got a ragged {type(mask).__name__}") from None
        if mask.dtype != np.bool_ or mask.ndim != 2:
            # A mask made from weights would take numerical zeros for structure; insist on booleans.
            raise TypeError(f"`mask` must be a boolean matrix, got {mask.dtype} of shape {mask.shape}")
        pattern = cls.__new__(cls)
        pattern._fill(mask.shape, np.flatnonzero(mask))
        return pattern

    @property
    def digest(self) -> str:
        """A name for the content: equal patterns, in whatever process, have equal ones."""
        return self._digest.hex()

    @property
    def is_full(self) -> bool:
        return self._flat is None

    @property
    def density(self) -> float:
        return self.nnz / max(1, self.shape[0] * self.shape[1])

    @cached_property
    def flat(self) -> NDArray[np.int64]:
        """Row-major position of every entry, ascending."""
        return _frozen(np.arange(self.nnz)) if self._flat is None else self._flat

    @cached_property
    def rows(self) -> NDArray[np.int32]:
        return _frozen((self.flat // max(1, self.shape[1])).astype(np.int32))

    @cached_property
    def cols(self) -> NDArray[np.int32]:
        return _frozen((self.flat % max(1, self.shape[1])).astype(np.int32))

    @cached_property
    def row_starts(self) -> NDArray[np.int64]:
        """Entries of row r are those from `row_starts[r]` to `row_starts[r + 1]`."""
        if self._flat is None:
            return _frozen(np.arange(self.shape[0] + 1) * self.shape[1])
        return _frozen(np.searchsorted(self._flat, np.arange(self.shape[0] + 1) * self.shape[1]).astype(np.int64))

    @cached_property
    def by_row(self) -> Table:
        return _table(self.rows, self.cols, np.arange(self.nnz), *self.shape)

    @cached_property
    def by_column(self) -> Table:
        order = self.column_order
        return _table(self.cols[order], self.rows[order], order, self.shape[1], self.shape[0])

    @cached_property
    def column_order(self) -> NDArray[np.int64]:
        """The entries, column by column."""
        return np.lexsort((self.rows, self.cols))

    def find(self, rows: NDArray[Any], cols: NDArray[Any]) -> NDArray[np.int32]:
        """The entry at each coordinate, or `nnz` where the pattern has none or the coordinate is one past the end."""
        if self.shape[0] * self.shape[1] <= TABLE_LIMIT:
            table = np.full((self.shape[0] + 1, self.shape[1] + 1), self.nnz, np.int32)
            table[self.rows, self.cols] = np.arange(self.nnz)
            return table[rows, cols]
        inside = (rows < self.shape[0]) & (cols < self.shape[1])
        wanted = np.where(inside, rows.astype(np.int64) * self.shape[1] + cols, -1)
        if self._flat is None:
            return np.where(inside, wanted, self.nnz).astype(np.int32)
        entry = np.searchsorted(self._flat, wanted)
        found = self._flat[np.minimum(entry, self.nnz - 1)] == wanted if self.nnz else np.zeros(wanted.shape, bool)
        return np.where(found, entry, self.nnz).astype(np.int32)

    def mask(self) -> NDArray[np.bool_]:
        """The boolean matrix that is True where an entry exists."""
        mask = np.zeros(self.shape, bool)
        mask.reshape(-1)[self.flat] = True
        return mask

    def __reduce__(self) -> Any:
        # Only the content: what is derived from it is worked out again, and nothing of it becomes writable.
        return _restored, (self.shape, self._flat)

    def __deepcopy__(self, memo: Any) -> Pattern:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self._digest == other._digest

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        mark = self.digest[:6]  # tells patterns of one size apart
        return f"Pattern({self.shape[0]}x{self.shape[1]}, {self.nnz} entries, {1 - self.density:.2%} sparse, #{mark})"


def _restored(shape: tuple[int, int], flat: NDArray[np.int64] | None) -> Pattern:
    pattern = Pattern.__new__(Pattern)
    pattern._fill(shape, flat)
    return pattern


def _checked_shape(shape: Any) -> tuple[int, int]:
    try:
        rows, cols = (operator.index(n) for n in shape)
    except (TypeError, ValueError):
        raise TypeError(f"`shape` must be two integers (rows, cols), got {arguments.shown(shape)}") from None
    if rows < 0 or cols < 0 or rows * cols >= 1 << 63:
        raise ValueError(f"`shape` must be two integers >= 0 with a product below 2^63, got {(rows, cols)}")
    return rows, cols


def _coordinates(name: str, given: Any) -> NDArray[np.int64]:
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a vector of integers, got a {type(given).__name__}") from None
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be a vector of integers, got {array.dtype}")
    return array.astype(np.int64) if array.size else np.zeros(array.shape, np.int64)


def _ascending(flat: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The distinct numbers below `size`, in order; many times faster than `np.unique`, which hashes them."""
    if size <= 8 * flat.size:
        exists = np.zeros(size, bool)
        exists[flat] = True
        return np.flatnonzero(exists)
    if not (flat[1:] > flat[:-1]).all():
        flat = np.sort(flat)
        flat = flat[np.diff(flat, prepend=-1) > 0]
    return flat


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _table(lines: NDArray[Any], index: NDArray[Any], entry: NDArray[Any], n_lines: int, n_index: int) -> Table:
    counts = np.bincount(lines, minlength=n_lines)
    width = int(counts.max(initial=0))
    place = np.arange(len(lines)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = Table(np.full((n_lines, width), len(lines), np.int32), np.full((n_lines, width), n_index, np.int32))
    table.entry[lines, place] = entry
    table.other[lines, place] = index
    return table
