"""How the reference kernel lays out blocks: those of like size share a bucket, padded to its largest block.

Indices are made once, in NumPy. Padding points one past the end, at a zero. Where blocks are split over devices, all of
them have the same buckets, with as many blocks as any of them needs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from snapgrad.sparsity.partition import assignment
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Bucket:
    """Blocks of like size, n of them, padded to R rows, E immediate rows and P columns."""

    rows: NDArray[np.int32]  # [n, R] state entries
    dynamics: NDArray[np.int32]  # [n, R, R] entries of D; [1, R, R] where all blocks have the same rows
    immediate_rows: NDArray[np.int32]  # [n, E] which of the R rows are immediate
    immediate: NDArray[np.int64]  # [n, E, P] entries of I
    credit: NDArray[np.int32]  # [n, E] entries of `groups.entries`
    columns: NDArray[np.int32]  # [n, P] parameters

    @property
    def shape(self) -> tuple[int, int, int]:
        return *self.rows.shape, self.immediate.shape[2]

    @property
    def block(self) -> NDArray[np.int64]:
        return np.arange(len(self.rows))[:, None]  # beside `immediate_rows`


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Layout:
    """How the blocks of one network lie in buckets."""

    buckets: tuple[Bucket, ...]
    param_at: NDArray[np.int64]  # [params] place among all buckets' columns; one past the end: in no block
    credit_at: NDArray[np.int64]  # [nnz(groups.entries)] place among all buckets' immediate rows


@lru_cache(maxsize=32)
def layout(blocks: Blocks) -> Layout:
    """Sorts blocks into buckets by the next power of two of their height and width.

    A bucket gathers D[R, R] for every block, which for large, unequal R takes more memory than J itself: in plain JAX
    the order must stay low enough for the sparsity. Blocks that hold every state entry share one D.
    """
    return layouts(blocks, 1)[0]


@lru_cache(maxsize=32)
def stacked_layout(blocks: Blocks, parts: int) -> Layout:
    """The layouts of all parts, along a first axis of every array."""
    return jax.tree.map(lambda *arrays: np.stack(arrays), *layouts(blocks, parts))


def layouts(blocks: Blocks, parts: int) -> list[Layout]:
    """The layout of each part, all of one shape."""
    part_of, members = assignment(blocks, parts), bucket_members(blocks)
    blocks = _complete(blocks)
    whole = [_bucket(blocks, member) for member in members]
    layouts = []
    for part in range(parts):
        buckets = []
        for bucket, member in zip(whole, members, strict=True):
            most = np.bincount(part_of[member], minlength=parts).max()
            buckets.append(_pick(blocks, bucket, np.flatnonzero(part_of[member] == part), most))
        layouts.append(_placed(blocks, tuple(buckets)))
    return layouts


def bucket_members(blocks: Blocks) -> list[NDArray[np.int64]]:
    """The groups whose blocks are in each bucket, in order."""
    blocks = _complete(blocks)
    heights, widths = blocks.heights, blocks.widths
    used = np.flatnonzero((heights > 0) & (widths > 0))
    # Blocks that hold every row share one copy of D, so they get a bucket of their own.
    kind = np.stack([_log2(heights), _log2(widths), heights == blocks.states], axis=1)[used]
    _, bucket_of = np.unique(kind, axis=0, return_inverse=True)
    return [used[bucket_of.ravel() == bucket] for bucket in range(bucket_of.max(initial=-1) + 1)]


def _pick(blocks: Blocks, bucket: Bucket, own: NDArray[Any], most: int) -> Bucket:
    """Some blocks of a bucket, and empty ones behind them."""
    entries, groups = blocks.groups.entries, blocks.groups
    shared = len(bucket.dynamics) != len(bucket.rows)

    def pick(indices: NDArray[Any], padding: int) -> NDArray[Any]:
        empty = np.full((most - len(own), *indices.shape[1:]), padding, indices.dtype)
        return np.concatenate([indices[own], empty])

    return Bucket(
        rows=pick(bucket.rows, blocks.states),
        dynamics=bucket.dynamics if shared else pick(bucket.dynamics, blocks.dynamics.nnz),
        immediate_rows=pick(bucket.immediate_rows, bucket.rows.shape[1]),
        immediate=pick(bucket.immediate, groups.nnz),
        credit=pick(bucket.credit, entries.nnz),
        columns=pick(bucket.columns, blocks.n_params),
    )


def _placed(blocks: Blocks, buckets: tuple[Bucket, ...]) -> Layout:
    n_columns = sum(bucket.columns.size for bucket in buckets)
    n_immediate = sum(bucket.credit.size for bucket in buckets)
    param_at = np.full(blocks.n_params + 1, n_columns)
    credit_at = np.full(blocks.groups.entries.nnz + 1, n_immediate)
    columns_before = immediate_before = 0
    for bucket in buckets:
        param_at[bucket.columns] = columns_before + np.arange(bucket.columns.size).reshape(bucket.columns.shape)
        credit_at[bucket.credit] = immediate_before + np.arange(bucket.credit.size).reshape(bucket.credit.shape)
        columns_before += bucket.columns.size
        immediate_before += bucket.credit.size
    return Layout(buckets, param_at[:-1], credit_at[:-1])


def _complete(blocks: Blocks) -> Blocks:
    """Gives all rows to the blocks that hold most of them and that no influence ever leaves, as in RTRL.

    The added entries are and stay zero, and the blocks can share one D.
    """
    whole = blocks.closed() & (blocks.heights > blocks.states / 2)
    group, state = np.nonzero(np.broadcast_to(whole[:, None], blocks.reach.shape))
    rows, cols = np.concatenate([blocks.reach.rows, group]), np.concatenate([blocks.reach.cols, state])
    return dataclasses.replace(blocks, reach=Pattern.merged(rows, cols, blocks.reach.shape))


def _bucket(blocks: Blocks, member: NDArray[Any]) -> Bucket:
    entries, starts = blocks.groups.entries, blocks.groups.starts
    rows = _lines(blocks.reach, member)
    columns = _lines(blocks.groups.params, member)
    widths = blocks.widths[member][:, None, None]
    shared = rows[:1] if rows.shape[1] == blocks.states else rows

    credit = _lines(entries, member, entry=True)
    place = blocks.reach.find(np.broadcast_to(member[:, None], credit.shape), _lines(entries, member))
    first = blocks.reach.row_starts[member][:, None]
    exists = credit < entries.nnz
    nth = np.arange(credit.shape[1])[:, None]
    immediate = starts[member][:, None, None] + nth * widths + np.arange(columns.shape[1])
    real = exists[:, :, None] & (columns < blocks.n_params)[:, None, :]
    return Bucket(
        rows=rows,
        dynamics=blocks.dynamics.find(shared[:, :, None], shared[:, None, :]),
        immediate_rows=np.where(exists, place - first, rows.shape[1]).astype(np.int32),
        immediate=np.where(real, immediate, blocks.groups.nnz),
        credit=credit,
        columns=columns,
    )


def _lines(pattern: Pattern, lines: NDArray[Any], *, entry: bool = False) -> NDArray[np.int32]:
    """Columns (or entry numbers) of the given rows of a pattern, padded to the longest of them."""
    counts = np.diff(pattern.row_starts)[lines]
    nth = np.arange(counts.max(initial=0))
    number = pattern.row_starts[lines][:, None] + nth
    real = nth < counts[:, None]
    if entry:
        return np.where(real, number, pattern.nnz).astype(np.int32)
    return np.where(real, np.append(pattern.cols, 0)[np.where(real, number, 0)], pattern.shape[1]).astype(np.int32)


def _log2(sizes: NDArray[Any]) -> NDArray[Any]:
    return np.ceil(np.log2(np.maximum(sizes, 1)))


def places(blocks: Blocks) -> tuple[NDArray[Any], NDArray[Any]]:
    """The state entry and the parameter of every place of J, bucket by bucket; in the padding one past the end."""
    states, params = [], []
    for bucket in layout(blocks).buckets:
        real = (bucket.rows < blocks.states)[..., None] & (bucket.columns < blocks.n_params)[:, None]
        states.append(np.where(real, bucket.rows[..., None], blocks.states).ravel())
        params.append(np.where(real, bucket.columns[:, None], blocks.n_params).ravel())
    return np.concatenate(states), np.concatenate(params)
