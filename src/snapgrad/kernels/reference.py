"""The influence operations in plain JAX: blocked, padded, batched products. Runs wherever XLA does.

Blocks of like size share a bucket, padded to its largest block: J is one array [B, blocks, rows, columns] a bucket.
Indices are made once, in NumPy, and become constants of the compiled program. Padding points one past the end, at a
zero. Where blocks are split over devices, all of them have the same buckets, with as many blocks as any of them needs,
and a device takes its own indices from those of all.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from snapgrad.kernels import rounding
from snapgrad.kernels.base import Credit, Influence, Kernel, Products, Sums, entry_order, place_sources
from snapgrad.kernels.share import BATCH, PARAMS, Share
from snapgrad.sparsity.matrix import append_zero, densify, map_matrices
from snapgrad.sparsity.partition import assignment
from snapgrad.sparsity.pattern import Pattern
from snapgrad.sparsity.reach import Blocks

# From this share of entries on, making the matrix dense multiplies faster than gathering its entries.
# Measured with XLA on two CPU cores by benchmarks/products.py: the two are equal between 0.1 % and 1.6 %, by size.
DENSE_FROM_DENSITY = 0.005


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
    return _layouts(blocks, 1)[0]


@lru_cache(maxsize=32)
def stacked_layout(blocks: Blocks, parts: int) -> Layout:
    """The layouts of all parts, along a first axis of every array."""
    return jax.tree.map(lambda *arrays: np.stack(arrays), *_layouts(blocks, parts))


def _layouts(blocks: Blocks, parts: int) -> list[Layout]:
    """The layout of each part, all of one shape."""
    part_of = assignment(blocks, parts)
    blocks = _complete(blocks)
    heights, widths = blocks.heights, blocks.widths
    used = np.flatnonzero((heights > 0) & (widths > 0))
    # Blocks that hold every row share one copy of D, so they get a bucket of their own.
    kind = np.stack([_log2(heights), _log2(widths), heights == blocks.states], axis=1)[used]
    _, bucket_of = np.unique(kind, axis=0, return_inverse=True)
    members = [used[bucket_of.ravel() == bucket] for bucket in range(bucket_of.max(initial=-1) + 1)]
    whole = [_bucket(blocks, member) for member in members]
    layouts = []
    for part in range(parts):
        buckets = []
        for bucket, member in zip(whole, members, strict=True):
            most = np.bincount(part_of[member], minlength=parts).max()
            buckets.append(_pick(blocks, bucket, np.flatnonzero(part_of[member] == part), most))
        layouts.append(_placed(blocks, tuple(buckets)))
    return layouts


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


class ReferenceKernel(Kernel):
    """J is one array [B, blocks, rows, columns] a bucket, Lambda one array [B, blocks, rows]."""

    name = "reference"
    dense_from_density = DENSE_FROM_DENSITY

    def sharing(self, share: Share) -> ReferenceKernel:
        return ReferenceKernel(share)

    def _layout(self, blocks: Blocks) -> Layout:
        if self.share.params == 1:
            return layout(blocks)
        part = self.share.part
        return jax.tree.map(lambda all_parts: jnp.asarray(all_parts)[part], stacked_layout(blocks, self.share.params))

    def ready(self, params: Any) -> Any:
        return map_matrices(lambda m: densify(m) if m.pattern.density >= DENSE_FROM_DENSITY else m, params)

    def sums(self, sums: Sums, left: jax.Array, right: jax.Array) -> jax.Array:
        left_of, right_of = _sum_table(sums)
        return jnp.sum(append_zero(left.T)[:, left_of] * append_zero(right.T)[:, right_of], axis=-1).T

    def zeros(self, blocks: Blocks, batch_size: int, dtype: Any) -> Influence:
        return tuple(jnp.zeros((batch_size, *bucket.shape), dtype) for bucket in self._layout(blocks).buckets)

    def influence_step(
        self,
        blocks: Blocks,
        J: Influence,
        D: jax.Array,
        I: Products,
        delta: jax.Array,
        noise: jax.Array | None = None,
    ) -> tuple[Influence, jax.Array]:
        immediate, where = self.sums(I.at, I.left, I.right).T, self._layout(blocks)
        J_t = _add_immediate(where, _propagate(where, D.T, tuple(old.astype(D.dtype) for old in J)), immediate)
        return J_t if noise is None else _round(blocks, where, J_t, noise), _contract(where, delta.T, J_t)

    def forget(self, J: Influence, where: jax.Array) -> Influence:
        return tuple(jnp.where(where[:, None, None, None], jnp.zeros((), block.dtype), block) for block in J)

    def carry_over(self, old: Blocks, new: Blocks, sources: NDArray[np.int64], J: Influence) -> Influence:
        shapes = [bucket.shape for bucket in layout(new).buckets]
        flat = jnp.concatenate([block.reshape(len(block), -1) for block in J], axis=1)
        at = place_sources(_places(old), _places(new), np.append(sources, old.n_params), new.states + 1, flat.shape[1])
        parts = jnp.split(append_zero(flat)[:, at], np.cumsum([np.prod(shape) for shape in shapes])[:-1], axis=1)
        return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))

    def influence_axes(self) -> Any:
        return PartitionSpec(BATCH, PARAMS)  # for all buckets

    def to_entries(self, blocks: Blocks, J: Influence, batch_size: int) -> NDArray[Any]:
        flat = np.concatenate([np.asarray(part).reshape(batch_size, -1) for part in J], axis=1)
        return flat[:, entry_order(*_places_of_parts(blocks, self.share.params), blocks.n_params)]

    def from_entries(self, blocks: Blocks, entries: NDArray[Any]) -> Influence:
        parts = self.share.params
        flat = np.zeros((len(entries), len(_places_of_parts(blocks, parts)[0])), entries.dtype)
        flat[:, entry_order(*_places_of_parts(blocks, parts), blocks.n_params)] = entries
        shapes = [(parts * n, *block) for n, *block in (b.shape for b in _layouts(blocks, parts)[0].buckets)]
        split = np.split(flat, np.cumsum([np.prod(shape) for shape in shapes])[:-1], axis=1)
        return tuple(part.reshape(-1, *shape) for part, shape in zip(split, shapes, strict=True))

    def zero_credit(self, blocks: Blocks, batch_size: int, dtype: Any) -> Credit:
        return tuple(jnp.zeros((batch_size, *bucket.rows.shape), dtype) for bucket in self._layout(blocks).buckets)

    def credit_step(self, blocks: Blocks, Lambda: Credit, D: jax.Array, delta: jax.Array) -> tuple[Credit, jax.Array]:
        by_row = np.argsort(blocks.dynamics.column_order)
        delta, D, where = append_zero(delta.T), append_zero(D.T[:, by_row]), self._layout(blocks)
        buckets = where.buckets
        Lambda = tuple(L + delta[:, bucket.rows] for bucket, L in zip(buckets, Lambda, strict=True))
        earlier = tuple(_product_back(D[:, bucket.dynamics], L) for bucket, L in zip(buckets, Lambda, strict=True))
        return earlier, _at_entries(where, Lambda, delta).T


def _places(blocks: Blocks) -> tuple[NDArray[Any], NDArray[Any]]:
    """The state entry and the parameter of every place of J, bucket by bucket; in the padding one past the end."""
    return _places_of_parts(blocks, 1)


def _places_of_parts(blocks: Blocks, parts: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same for the J of all parts: of every bucket one part behind the other."""
    states, params = [], []
    for bucket_of_parts in zip(*(where.buckets for where in _layouts(blocks, parts)), strict=True):
        for bucket in bucket_of_parts:
            real = (bucket.rows < blocks.states)[..., None] & (bucket.columns < blocks.n_params)[:, None]
            states.append(np.where(real, bucket.rows[..., None], blocks.states).ravel())
            params.append(np.where(real, bucket.columns[:, None], blocks.n_params).ravel())
    return np.concatenate(states), np.concatenate(params)


@lru_cache(maxsize=64)
def _sum_table(sums: Sums) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both indices of every term, [sums, most terms of any]; padding one past the end."""
    counts = np.diff(sums.starts)
    nth = np.arange(counts.max(initial=0))
    term, real = sums.starts[:-1, None] + nth, nth < counts[:, None]
    term = np.where(real, term, len(sums.left_of))
    return np.append(sums.left_of, sums.left)[term], np.append(sums.right_of, sums.right)[term]


def _propagate(where: Layout, dynamics: jax.Array, influence: Influence) -> Influence:
    """D J on the kept entries, block by block: D[R, R] J[R, P]."""
    dynamics = append_zero(dynamics)
    return tuple(_product(dynamics[:, bucket.dynamics], J) for bucket, J in zip(where.buckets, influence, strict=True))


def _product(D: jax.Array, J: jax.Array) -> jax.Array:
    # A batch of very small products is faster written out than as calls to a matrix multiplication.
    if D.shape[-1] <= 4:
        return jnp.sum(D[..., None] * J[:, :, None], axis=3)
    return D @ J


def _add_immediate(where: Layout, influence: Influence, immediate: jax.Array) -> Influence:
    """J + I on the kept entries."""
    immediate = append_zero(immediate)
    return tuple(
        J.at[:, bucket.block, bucket.immediate_rows].add(immediate[:, bucket.immediate], mode="drop")
        for bucket, J in zip(where.buckets, influence, strict=True)
    )


def _round(blocks: Blocks, where: Layout, influence: Influence, noise: jax.Array) -> Influence:
    """J in bfloat16."""
    word, turn = noise[..., None, None, None]  # [B, 1, 1, 1]
    return tuple(
        rounding.to_bfloat16(J, rounding.draw(word, turn, _numbers(blocks, bucket)))
        for bucket, J in zip(where.buckets, influence, strict=True)
    )


def _numbers(blocks: Blocks, bucket: Bucket) -> jax.Array:
    """The number of every entry in the whole J [states, params], modulo 2^32; [1, n, R, P]."""
    rows, columns = (jnp.asarray(index, jnp.uint32) for index in (bucket.rows, bucket.columns))
    return rows[None, :, :, None] * np.uint32(blocks.n_params) + columns[None, :, None, :]


def _contract(where: Layout, delta: jax.Array, influence: Influence) -> jax.Array:
    """The gradient delta . J [params], summed over the batch."""
    delta = append_zero(delta)
    columns = [
        jnp.einsum("bnr,bnrp->np", delta[:, bucket.rows], J).ravel()
        for bucket, J in zip(where.buckets, influence, strict=True)
    ]
    return append_zero(jnp.concatenate([jnp.zeros(0, delta.dtype), *columns]))[where.param_at]


def _product_back(D: jax.Array, L: jax.Array) -> jax.Array:
    if D.shape[1] == 1:  # shared by all blocks
        return jnp.einsum("bqr,bnq->bnr", D[:, 0], L)
    return jnp.einsum("bnqr,bnq->bnr", D, L)


def _at_entries(where: Layout, credit: Credit, like: jax.Array) -> jax.Array:
    """Lambda at each group's immediate entries, [B, nnz(groups.entries)]."""
    batch_size = like.shape[0]
    picked = [
        jnp.take_along_axis(L, jnp.asarray(bucket.immediate_rows)[None], axis=2, mode="fill", fill_value=0)
        for bucket, L in zip(where.buckets, credit, strict=True)
    ]
    nothing = jnp.zeros((batch_size, 0), like.dtype)
    flat = jnp.concatenate([nothing, *(p.reshape(batch_size, -1) for p in picked)], axis=1)
    return append_zero(flat)[:, where.credit_at]
