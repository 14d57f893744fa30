"""Sparse matrix products that run natively on CPU, with the batch innermost.

    product          y = W x   or   x = W^T y
    sampled_product  dW = y x^T at the pattern of W, summed over the batch
    transpose        between a batch of examples, and the batch innermost

The first two are linear in both operands and the derivatives of the two are made of the two, so as primitives they can
be differentiated forwards and backwards any number of times. On other devices, and where the native part was not built,
they are gathers in plain JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from snapgrad.kernels import binding
from snapgrad.kernels.share import like, varying
from snapgrad.sparsity.matrix import SparseMatrix, append_zero
from snapgrad.sparsity.pattern import Pattern

product_p = Primitive("snapgrad_product")  # values [nnz], x [cols, N] -> [rows, N], and with `transposed` back
sampled_product_p = Primitive("snapgrad_sampled_product")  # y [rows, N], x [cols, N] -> [nnz]
transpose_p = Primitive("snapgrad_transpose")  # [M, N] -> [N, M]

# XLA writes the transposition of a batch into the loops before and after a product, which then read with a stride of
# one example's units: on a GRU of 1024 to 4096 units that was half of the time of backpropagation. From so many
# elements on it is done natively, apart from them.
WIDE = 1 << 14


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NativeMatrix(SparseMatrix):
    """A sparse matrix that multiplies by way of `product`; to a cell it is a `SparseMatrix` like any other.

    With a `slot` the plan in that slot says where its values stand, and the pattern only what shape it has.
    """

    slot: binding.PlanName | None = field(default=None, metadata={"static": True})

    def __matmul__(self, x: jax.Array) -> jax.Array:
        x = self.checked_factor(x)
        values, x = varying((self.values, x), self.values, x)
        return product_p.bind(values, x[:, None], pattern=self.pattern, slot=self.slot, transposed=False)[:, 0]

    @property
    def plan(self) -> binding.PlanName:
        """What native kernels find its entries by."""
        return binding.matrix_plan(self.pattern) if self.slot is None else self.slot

    def column(self, index: jax.Array) -> jax.Array:
        if self.slot is None:
            return super().column(index)
        return self @ jax.nn.one_hot(index, self.shape[1], dtype=self.values.dtype)


Slot = binding.PlanName | None


def _product(values: jax.Array, x: jax.Array, *, pattern: Pattern, slot: Slot, transposed: bool) -> jax.Array:
    _refuse_slot(slot)
    table = pattern.by_column if transposed else pattern.by_row
    padded = jnp.concatenate([x, jnp.zeros((1, x.shape[1]), x.dtype)])
    return jnp.einsum("le,len->ln", append_zero(values)[table.entry], padded[table.other])


def _sampled_product(y: jax.Array, x: jax.Array, *, pattern: Pattern, slot: Slot) -> jax.Array:
    _refuse_slot(slot)
    return jnp.sum(y[pattern.rows] * x[pattern.cols], axis=-1)


def _refuse_slot(slot: Slot) -> None:
    # In plain JAX the pattern would become a constant of the program, and stay when the slot is given another one.
    if slot is not None:
        raise ValueError("a matrix in a slot must be multiplied natively, in float32 or float64 on CPU")


@product_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _product_shape(values: Any, x: Any, *, pattern: Pattern, slot: Slot, transposed: bool) -> Any:
    rows, cols = reversed(pattern.shape) if transposed else pattern.shape
    if values.shape != (pattern.nnz,) or x.shape[0] != cols or x.ndim != 2 or values.dtype != x.dtype:
        raise TypeError(f"a product with {pattern} needs values [{pattern.nnz}] and x [{cols}, N] of one dtype, "
                        f"got {values} and {x}")  # fmt: skip
    return like(x, (rows, x.shape[1]))


@sampled_product_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _sampled_product_shape(y: Any, x: Any, *, pattern: Pattern, slot: Slot) -> Any:
    if (y.shape[0], x.shape[0]) != pattern.shape or y.shape[1:] != x.shape[1:] or y.dtype != x.dtype:
        raise TypeError(f"a sampled product at {pattern} needs [rows, N] and [cols, N] of one dtype, got {y} and {x}")
    return like(x, (pattern.nnz,))


@transpose_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _transpose_shape(x: Any) -> Any:
    return like(x, (x.shape[1], x.shape[0]))


ad.deflinear2(transpose_p, lambda ct, _: [transpose_p.bind(ct)])
ad.defbilinear(
    product_p,
    lambda ct, values, x, transposed, **at: sampled_product_p.bind(*((x, ct) if transposed else (ct, x)), **at),
    lambda ct, values, x, transposed, **at: product_p.bind(values, ct, **at, transposed=not transposed),
)
ad.defbilinear(
    sampled_product_p,
    lambda ct, y, x, **at: product_p.bind(ct, x, **at, transposed=False),
    lambda ct, y, x, **at: product_p.bind(ct, y, **at, transposed=True),
)


def _batch_product(operands: Any, axes: Any, **attributes: Any) -> tuple[jax.Array, int]:
    values, x = operands
    if axes[0] is not None:  # other weights in every lane, as when networks are trained side by side
        x = (
            jnp.moveaxis(x, axes[1], 0)
            if axes[1] is not None
            else jnp.broadcast_to(x, (values.shape[axes[0]], *x.shape))
        )
        one = lambda pair: product_p.bind(*pair, **attributes)  # noqa: E731
        return jax.lax.map(one, (jnp.moveaxis(values, axes[0], 0), x)), 0
    if x.ndim == 3 and axes[1] == 0 and x.shape[2] == 1 and x.size >= WIDE:
        out = product_p.bind(values, transpose_p.bind(x[:, :, 0]), **attributes)
        return transpose_p.bind(out)[:, :, None], 0
    lanes = jnp.moveaxis(x, axes[1], -1)
    out = product_p.bind(values, lanes.reshape(lanes.shape[0], -1), **attributes)
    return out.reshape(out.shape[0], *lanes.shape[1:]), 2


def _batch_sampled_product(operands: Any, axes: Any, *, pattern: Pattern, slot: Slot) -> tuple[jax.Array, int]:
    if slot is None:
        # Nothing is summed over these lanes, so there is nothing to win by going through the pattern at once.
        return jax.vmap(lambda y, x: _sampled_product(y, x, pattern=pattern, slot=None), in_axes=axes)(*operands), 0
    size = next(array.shape[axis] for array, axis in zip(operands, axes, strict=True) if axis is not None)
    lanes = [
        jnp.broadcast_to(array, (size, *array.shape)) if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(operands, axes, strict=True)
    ]
    return jax.lax.map(lambda pair: sampled_product_p.bind(*pair, pattern=pattern, slot=slot), tuple(lanes)), 0


def _batch_transpose(operands: Any, axes: Any) -> tuple[jax.Array, int]:
    return jnp.matrix_transpose(jnp.moveaxis(operands[0], axes[0], 0)), 0


batching.primitive_batchers[product_p] = _batch_product
batching.primitive_batchers[transpose_p] = _batch_transpose
batching.primitive_batchers[sampled_product_p] = _batch_sampled_product

mlir.register_lowering(product_p, mlir.lower_fun(_product, multiple_results=False))
mlir.register_lowering(sampled_product_p, mlir.lower_fun(_sampled_product, multiple_results=False))
mlir.register_lowering(transpose_p, mlir.lower_fun(jnp.transpose, multiple_results=False))


def _lower_natively(primitive: Primitive, target: str, reference: Any) -> None:
    native, plain = jax.ffi.ffi_lowering(target), mlir.lower_fun(reference, multiple_results=False)

    def lower(ctx: Any, *operands: Any, pattern: Pattern, slot: Slot, **attributes: Any) -> Any:
        if ctx.avals_in[0].dtype not in binding.DTYPES:
            return plain(ctx, *operands, pattern=pattern, slot=slot, **attributes)
        plan = binding.matrix_plan(pattern) if slot is None else slot
        ctx.module_context.add_keepalive(plan)
        return native(ctx, *operands, plan=plan, **attributes)

    mlir.register_lowering(primitive, lower, platform="cpu")


def _lower_transpose(ctx: Any, x: Any) -> Any:
    binding.register()
    native, plain = jax.ffi.ffi_lowering("snapgrad_transpose"), mlir.lower_fun(jnp.transpose, multiple_results=False)
    return (native if ctx.avals_in[0].dtype in binding.DTYPES else plain)(ctx, x)


if binding.available:
    mlir.register_lowering(transpose_p, _lower_transpose, platform="cpu")
    _lower_natively(product_p, "snapgrad_product", _product)
    _lower_natively(sampled_product_p, "snapgrad_sampled_product", _sampled_product)


@lru_cache(maxsize=256)
def _compiled(primitive: Primitive, attributes: tuple[tuple[str, Any], ...]) -> Any:
    return jax.jit(lambda *operands: primitive.bind(*operands, **dict(attributes)))


for _primitive in (product_p, sampled_product_p, transpose_p):  # outside of jit
    _primitive.def_impl(
        lambda *operands, _primitive=_primitive, **attributes: _compiled(_primitive, tuple(attributes.items()))(
            *operands
        )
    )
