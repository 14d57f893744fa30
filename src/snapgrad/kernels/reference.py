"""The influence operations in plain JAX: blocked, padded, batched products. Runs wherever XLA does.

J is one array [B, blocks, rows, columns] a bucket of blocks of like size (kernels/layout.py). Indices become constants
of the compiled program; where blocks are split over devices, a device takes its own from those of all.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from snapgrad.kernels import rounding
from snapgrad.kernels.base import Credit, Influence, Kernel, Products, Sums, place_sources
from snapgrad.kernels.layout import Bucket, Layout, bucket_members, layout, places, stacked_layout
from snapgrad.kernels.resharding import Resharding, Split
from snapgrad.kernels.share import BATCH, PARAMS, Share
from snapgrad.sparsity.matrix import append_zero, densify, map_matrices
from snapgrad.sparsity.partition import assignment
from snapgrad.sparsity.reach import Blocks

# From this share of entries on, making the matrix dense multiplies faster than gathering its entries.
# Measured with XLA on two CPU cores by benchmarks/products.py: the two are equal between 0.1 % and 1.6 %, by size.
DENSE_FROM_DENSITY = 0.005


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
        right = jnp.concatenate([right, jnp.ones((1, right.shape[1]), right.dtype)])
        return jnp.sum(append_zero(left.T)[:, left_of] * right.T[:, right_of], axis=-1).T

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
        at = place_sources(
            places(old),
            places(new),
            np.append(sources, old.n_params),
            new.states + 1,
            flat.shape[1],
        )
        parts = jnp.split(append_zero(flat)[:, at], np.cumsum([np.prod(shape) for shape in shapes])[:-1], axis=1)
        return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))

    def influence_axes(self) -> Any:
        return PartitionSpec(BATCH, PARAMS)  # for all buckets

    def influence_resharding(self, blocks: Blocks, batch_size: int) -> Any:
        parts = self.share.params
        part_of = assignment(blocks, parts)
        splits = (Split(part_of[own], np.ones_like(own), parts) for own in bucket_members(blocks))
        return tuple(Resharding(batch_size, self.share, split) for split in splits)

    def zero_credit(self, blocks: Blocks, batch_size: int, dtype: Any) -> Credit:
        return tuple(jnp.zeros((batch_size, *bucket.rows.shape), dtype) for bucket in self._layout(blocks).buckets)

    def credit_step(self, blocks: Blocks, Lambda: Credit, D: jax.Array, delta: jax.Array) -> tuple[Credit, jax.Array]:
        by_row = np.argsort(blocks.dynamics.column_order)
        delta, D, where = append_zero(delta.T), append_zero(D.T[:, by_row]), self._layout(blocks)
        buckets = where.buckets
        Lambda = tuple(L + delta[:, bucket.rows] for bucket, L in zip(buckets, Lambda, strict=True))
        earlier = tuple(_product_back(D[:, bucket.dynamics], L) for bucket, L in zip(buckets, Lambda, strict=True))
        return earlier, _at_entries(where, Lambda, delta).T


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
