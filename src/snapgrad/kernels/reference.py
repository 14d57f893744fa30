"""The influence operations in plain JAX: blocked, padded, batched products. Runs wherever XLA does.

Blocks of like size share a bucket, padded to its largest block: J is one array [B, blocks, rows, columns] a bucket.
Indices are made once, in NumPy, and become constants of the compiled program. Padding points one past the end, at a
zero.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from snapgrad.sparsity.matrix import append_zero
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks

Influence = tuple[jax.Array, ...]  # one [B, blocks, rows, columns] a bucket
Credit = tuple[jax.Array, ...]  # one [B, blocks, rows] a bucket


@dataclass(frozen=True, eq=False)
class Bucket:
    """Blocks of like size, n of them, padded to R rows, E immediate rows and P columns."""

    rows: NDArray[np.int32]  # [n, R] state entries
    dynamics: NDArray[np.int32]  # [n, R, R] entries of D; [1, R, R] where all blocks have the same rows
    immediate_rows: NDArray[np.int32]  # [n, E] which of the R rows are immediate
    immediate: NDArray[np.int64]  # [n, E, P] entries of I
    credit: NDArray[np.int32]  # [n, E] entries of `groups.entries`

    @property
    def shape(self) -> tuple[int, int, int]:
        return *self.rows.shape, self.immediate.shape[2]

    @property
    def block(self) -> NDArray[np.int64]:
        return np.arange(len(self.rows))[:, None]  # beside `immediate_rows`


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
    blocks = _complete(blocks)
    entries = blocks.groups.entries
    heights, widths = blocks.heights, blocks.widths
    used = np.flatnonzero((heights > 0) & (widths > 0))
    # Blocks that hold every row share one copy of D, so they get a bucket of their own.
    kind = np.stack([_log2(heights), _log2(widths), heights == blocks.states], axis=1)[used]
    _, bucket_of = np.unique(kind, axis=0, return_inverse=True)
    members = [used[bucket_of.ravel() == bucket] for bucket in range(bucket_of.max(initial=-1) + 1)]
    buckets = tuple(_bucket(blocks, member) for member in members)

    n_columns = sum(bucket.immediate.shape[0] * bucket.immediate.shape[2] for bucket in buckets)
    n_immediate = sum(bucket.credit.size for bucket in buckets)
    param_at = np.full(blocks.n_params + 1, n_columns)
    credit_at = np.full(entries.nnz + 1, n_immediate)
    columns_before = immediate_before = 0
    for bucket, member in zip(buckets, members, strict=True):
        columns = _lines(blocks.groups.params, member)
        param_at[columns] = columns_before + np.arange(columns.size).reshape(columns.shape)
        credit_at[bucket.credit] = immediate_before + np.arange(bucket.credit.size).reshape(bucket.credit.shape)
        columns_before, immediate_before = columns_before + columns.size, immediate_before + bucket.credit.size
    return Layout(buckets, param_at[:-1], credit_at[:-1])


def _complete(blocks: Blocks) -> Blocks:
    """Gives all rows to the blocks that hold most of them and that no influence ever leaves, as in RTRL.

    The added entries are and stay zero, and the blocks can share one D.
    """
    whole = blocks.closed() & (blocks.heights > blocks.states / 2)
    group, state = np.nonzero(np.broadcast_to(whole[:, None], blocks.reach.shape))
    rows, cols = np.concatenate([blocks.reach.rows, group]), np.concatenate([blocks.reach.cols, state])
    return dataclasses.replace(blocks, reach=Pattern(rows, cols, blocks.reach.shape))


def _bucket(blocks: Blocks, member: NDArray[Any]) -> Bucket:
    entries, starts = blocks.groups.entries, blocks.groups.starts
    rows = _lines(blocks.reach, member)
    columns = _lines(blocks.groups.params, member)
    shared = rows[:1] if rows.shape[1] == blocks.states else rows

    credit = _lines(entries, member, entry=True)
    place = blocks.reach.find(np.broadcast_to(member[:, None], credit.shape), _lines(entries, member))
    first = blocks.reach.row_starts[member][:, None]
    exists = credit < entries.nnz
    nth = np.arange(credit.shape[1])[:, None]
    immediate = np.append(starts[:-1], 0)[columns][:, None, :] + nth
    real = exists[:, :, None] & (columns < blocks.n_params)[:, None, :]
    return Bucket(
        rows=rows,
        dynamics=blocks.dynamics.find(shared[:, :, None], shared[:, None, :]),
        immediate_rows=np.where(exists, place - first, rows.shape[1]).astype(np.int32),
        immediate=np.where(real, immediate, blocks.groups.nnz),
        credit=credit,
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


def zeros(blocks: Blocks, batch_size: int, dtype: Any) -> Influence:
    """J = 0: nothing has influenced anything yet."""
    return tuple(jnp.zeros((batch_size, *bucket.shape), dtype) for bucket in layout(blocks).buckets)


def propagate(blocks: Blocks, dynamics: jax.Array, influence: Influence) -> Influence:
    """D J on the kept entries, block by block: D[R, R] J[R, P]. `dynamics` is [B, nnz(D)]."""
    dynamics = append_zero(dynamics)
    buckets = layout(blocks).buckets
    return tuple(_product(dynamics[:, bucket.dynamics], J) for bucket, J in zip(buckets, influence, strict=True))


def _product(D: jax.Array, J: jax.Array) -> jax.Array:
    # A batch of very small products is faster written out than as calls to a matrix multiplication.
    if D.shape[-1] <= 4:
        return jnp.sum(D[..., None] * J[:, :, None], axis=3)
    return D @ J


def add_immediate(blocks: Blocks, influence: Influence, immediate: jax.Array) -> Influence:
    """J + I on the kept entries. `immediate` is [B, nnz(I)]."""
    immediate = append_zero(immediate)
    return tuple(
        J.at[:, bucket.block, bucket.immediate_rows].add(immediate[:, bucket.immediate], mode="drop")
        for bucket, J in zip(layout(blocks).buckets, influence, strict=True)
    )


def contract(blocks: Blocks, delta: jax.Array, influence: Influence) -> jax.Array:
    """The gradient delta . J [params], summed over the batch, for delta = dL/ds [B, states]."""
    delta, where = append_zero(delta), layout(blocks)
    columns = [
        jnp.einsum("bnr,bnrp->np", delta[:, bucket.rows], J).ravel()
        for bucket, J in zip(where.buckets, influence, strict=True)
    ]
    return append_zero(jnp.concatenate([jnp.zeros(0, delta.dtype), *columns]))[where.param_at]


def zero_credit(blocks: Blocks, batch_size: int, dtype: Any) -> Credit:
    """Lambda = 0: nothing lies behind the end of the window."""
    return tuple(jnp.zeros((batch_size, *bucket.rows.shape), dtype) for bucket in layout(blocks).buckets)


def add_delta(blocks: Blocks, delta: jax.Array, credit: Credit) -> Credit:
    """Lambda + delta on every block's own rows. `delta` is [B, states]."""
    delta = append_zero(delta)
    return tuple(L + delta[:, bucket.rows] for bucket, L in zip(layout(blocks).buckets, credit, strict=True))


def propagate_back(blocks: Blocks, dynamics: jax.Array, credit: Credit) -> Credit:
    """D[R, R]^T Lambda, block by block: every group of parameters sees its own subnetwork only."""
    dynamics = append_zero(dynamics)
    buckets = layout(blocks).buckets
    return tuple(_product_back(dynamics[:, bucket.dynamics], L) for bucket, L in zip(buckets, credit, strict=True))


def _product_back(D: jax.Array, L: jax.Array) -> jax.Array:
    if D.shape[1] == 1:  # shared by all blocks
        return jnp.einsum("bqr,bnq->bnr", D[:, 0], L)
    return jnp.einsum("bnqr,bnq->bnr", D, L)


def immediate_credit(blocks: Blocks, credit: Credit, batch_size: int, dtype: Any) -> jax.Array:
    """Lambda at each group's immediate entries, [B, nnz(groups.entries)]."""
    where = layout(blocks)
    picked = [
        jnp.take_along_axis(L, jnp.asarray(bucket.immediate_rows)[None], axis=2, mode="fill", fill_value=0)
        for bucket, L in zip(where.buckets, credit, strict=True)
    ]
    nothing = jnp.zeros((batch_size, 0), dtype)
    flat = jnp.concatenate([nothing, *(p.reshape(batch_size, -1) for p in picked)], axis=1)
    return append_zero(flat)[:, where.credit_at]
