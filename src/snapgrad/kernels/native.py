"""The operations in C++ (native/), for CPU: one pass over J a step, in place, on XLA's own threads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from snapgrad.kernels import binding
from snapgrad.kernels.base import Credit, Influence, Kernel, Sums
from snapgrad.kernels.products import NativeMatrix
from snapgrad.sparsity.matrix import densify, map_matrices
from snapgrad.sparsity.reach import Blocks

# From this share of entries on, making the matrix dense multiplies faster. Measured on two CPU cores by
# benchmarks/products.py: the two are equal between 20 % and 50 %, by size.
DENSE_FROM_DENSITY = 0.3

TILE = binding.TILE


class NativeKernel(Kernel):
    """J is one array [tiles, kept, tile], Lambda one array [tiles, rows of all blocks, tile]."""

    name = "native"
    credit_tile = TILE

    def ready(self, params: Any) -> Any:
        return map_matrices(
            lambda m: densify(m) if m.pattern.density >= DENSE_FROM_DENSITY else NativeMatrix(m.values, m.pattern),
            params,
        )

    def influence_tile(self, batch_size: int) -> int:
        return TILE if batch_size >= TILE else 1  # where lanes do not fill a vector, columns do

    def sums(self, sums: Sums, left: jax.Array, right: jax.Array) -> jax.Array:
        out = jax.ShapeDtypeStruct((left.shape[0], len(sums.starts) - 1, left.shape[2]), left.dtype)
        return _call("sums", out)(left, right, plan=binding.sums_plan(sums))

    def zeros(self, blocks: Blocks, batch_size: int, dtype: Any) -> Influence:
        tile = self.influence_tile(batch_size)
        return jnp.zeros((-(-batch_size // tile), blocks.kept, tile), dtype)

    def influence_step(
        self,
        blocks: Blocks,
        J: Influence,
        D: jax.Array,
        I: jax.Array,
        delta: jax.Array,
        noise: jax.Array | None = None,
    ) -> tuple[Influence, jax.Array]:
        if noise is None:
            noise = jnp.zeros((J.shape[0], 0, J.shape[2]), jnp.uint32)
        gradient = jax.ShapeDtypeStruct((blocks.n_params,), D.dtype)
        call = _call("influence_step", (_like(J), gradient), in_place=True)
        J, g = call(J, D, I, delta, noise, plan=binding.blocks_plan(blocks))
        return J, g

    def forget(self, J: Influence, where: jax.Array) -> Influence:
        tiles, _, tile = J.shape
        lanes = jnp.pad(where, (0, tiles * tile - len(where))).reshape(tiles, tile)
        return _call("forget", _like(J), in_place=True)(J, lanes)

    def zero_credit(self, blocks: Blocks, batch_size: int, dtype: Any) -> Credit:
        return jnp.zeros((-(-batch_size // TILE), int(blocks.heights[blocks.widths > 0].sum()), TILE), dtype)

    def credit_step(self, blocks: Blocks, Lambda: Credit, D: jax.Array, delta: jax.Array) -> tuple[Credit, jax.Array]:
        credit = jax.ShapeDtypeStruct((D.shape[0], blocks.groups.entries.nnz, TILE), D.dtype)
        call = _call("credit_step", (_like(Lambda), credit), in_place=True)
        Lambda, at_entries = call(Lambda, D, delta, plan=binding.blocks_plan(blocks))
        return Lambda, at_entries


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _call(target: str, results: Any, *, in_place: bool = False) -> Any:
    """A call of the compiled part; what is vmapped over stands in front of every operand."""
    binding.register()
    return jax.ffi.ffi_call(
        f"snapgrad_{target}",
        results,
        vmap_method="broadcast_all",
        input_output_aliases={0: 0} if in_place else None,
    )
