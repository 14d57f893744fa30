"""The operations in C++ (native/), for CPU: one pass over J a step, in place, on XLA's own threads."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from snapgrad.kernels import binding
from snapgrad.kernels.base import Affine, Credit, Influence, Kernel, Products, Structure, Sums, place_sources
from snapgrad.kernels.elementwise import Elementwise, program
from snapgrad.kernels.products import NativeMatrix
from snapgrad.kernels.resharding import WHOLE, Order, Resharding, Split
from snapgrad.kernels.share import ALL, BATCH, PARAMS, Share, varying
from snapgrad.kernels.slots import Slots
from snapgrad.sparsity.matrix import SparseMatrix, densify, map_matrices, multiply
from snapgrad.sparsity.partition import assignment, partition
from snapgrad.sparsity.reach import Blocks

# From this share of entries on, making the matrix dense multiplies faster. Measured on two CPU cores by
# benchmarks/products.py: the two are equal between 20 % and 50 %, by size.
DENSE_FROM_DENSITY = 0.3

# How long J is made for patterns that change, times what is kept of it. Little at first, because random patterns hardly
# differ in what they keep; more when that was not enough.
ROOM, GROWTH = 1.05, 1.25

TILE, WIDE_TILE = binding.TILE, binding.WIDE_TILE
MOST_LANES = 512  # whose pre-activations and gates, of one unit at a time, are still near


class Lanes(NamedTuple):
    """J of a batch. A lane that starts anew is only marked: the next step takes no past from it, at no cost."""

    J: jax.Array  # [tiles, kept or more, tile]
    fresh: jax.Array  # [lanes] in which J counts as zero, whatever stands there


def settled(memory: Any) -> Any:
    """A tree in which every J is as it counts: zeros are written where a lane starts anew."""

    def settle(part: Any) -> Any:
        if not isinstance(part, Lanes):
            return part
        tiles, _, tile = part.J.shape
        J = jnp.where(part.fresh.reshape(tiles, 1, tile), jnp.zeros((), part.J.dtype), part.J)
        return Lanes(J, jnp.zeros_like(part.fresh))

    return jax.tree.map(settle, memory, is_leaf=lambda part: isinstance(part, Lanes))


class NativeKernel(Kernel):
    """J is one array with a mark for every lane (`Lanes`), Lambda one array [rows of all blocks, lanes].

    With `slots` its programs find their plans there, so that patterns can change; full matrices stay as they are.
    """

    name = "native"
    dense_from_density = DENSE_FROM_DENSITY

    def __init__(self, slots: Slots | None = None, share: Share = ALL):
        super().__init__(share)
        self._slots = slots

    # What was traced with the plans in one program's slots, or with fixed ones, must not be used with others.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NativeKernel) and self._slots is other._slots and self.share == other.share

    def __hash__(self) -> int:
        return hash((NativeKernel, id(self._slots), self.share))

    def sharing(self, share: Share) -> NativeKernel:
        return NativeKernel(self._slots, share)

    def _plan(self, structure: Structure) -> binding.PlanName:
        if self._slots is not None:
            return self._slots.name(structure)
        if isinstance(structure, Blocks):
            return binding.parts_plan(partition(structure, self.share.params))
        return binding.plan(structure)

    def _room(self, structure: Structure, size: int) -> int:
        return size if self._slots is None else self._slots.room(structure)

    def _kept(self, blocks: Blocks) -> int:
        """Entries of J that there is room for on every device: as many as the largest part has."""
        return max(part.kept for part in partition(blocks, self.share.params))

    def ready(self, params: Any) -> Any:
        def form(matrix: SparseMatrix) -> SparseMatrix:
            if matrix.pattern.is_full:
                return matrix
            if self._slots is not None:
                return NativeMatrix(matrix.values, matrix.pattern, self._slots.name(matrix.pattern))
            if matrix.pattern.density >= DENSE_FROM_DENSITY:
                return densify(matrix)
            return NativeMatrix(matrix.values, matrix.pattern)

        return map_matrices(form, params)

    def sums(self, sums: Sums, left: jax.Array, right: jax.Array) -> jax.Array:
        out = jax.ShapeDtypeStruct((self._room(sums, len(sums.starts) - 1), left.shape[1]), left.dtype)
        return _call("sums", out)(left, right, plan=self._plan(sums))

    def unit_step(
        self, rule: Elementwise, s: jax.Array, input: Affine, recurrent: Affine
    ) -> tuple[jax.Array, jax.Array] | None:
        states, units, lanes = s.shape
        # A smaller batch takes less than calling a second thread, and a larger one does not fit the nearest cache.
        made = program(rule, s.dtype) if TILE <= lanes <= MOST_LANES and s.dtype in binding.DTYPES else None
        if made is None:
            return None
        (W, x, input_plan), (V, _, recurrent_plan) = _multiplied(input), _multiplied(recurrent)
        recurrent_bias = jnp.zeros(0, s.dtype) if recurrent.bias is None else recurrent.bias
        flat = s.reshape(states * units, lanes)
        derivatives = jax.ShapeDtypeStruct((made.outputs * units - len(flat), lanes), s.dtype)
        s_t, found = _call("unit_step", (_like(flat), derivatives))(
            flat,
            W,
            x,
            input.bias,
            V,
            recurrent_bias,
            input=input_plan,
            recurrent=recurrent_plan,
            code=made.code,
            constants=made.constants,
            registers=np.int64(made.registers),
            units=np.int64(units),
        )
        return s_t.reshape(s.shape), found

    def zeros(self, blocks: Blocks, batch_size: int, dtype: Any) -> Influence:
        tile = _tile(batch_size)
        tiles = -(-batch_size // tile)
        return Lanes(jnp.zeros((tiles, self._kept(blocks), tile), dtype), jnp.zeros(tiles * tile, bool))

    def influence_step(
        self,
        blocks: Blocks,
        J: Influence,
        D: jax.Array,
        I: Products,
        delta: jax.Array,
        noise: jax.Array | None = None,
    ) -> tuple[Influence, jax.Array]:
        if noise is None:
            noise = jnp.zeros((0, delta.shape[1]), jnp.uint32)
        gradient = jax.ShapeDtypeStruct((blocks.n_params,), D.dtype)
        call = _call("influence_step", (_like(J.J), gradient), in_place=True)
        values = (_filled(value, len(J.fresh)) for value in (D, I.left, I.right, delta, noise))
        J_t, g = call(J.J, *values, J.fresh, self.share.part, plan=self._plan(blocks), products=self._plan(I.at))
        return Lanes(J_t, jnp.zeros_like(J.fresh)), g

    def forget(self, J: Influence, where: jax.Array) -> Influence:
        return J._replace(fresh=J.fresh | _filled(where, len(J.fresh)))

    def carry_over(self, old: Blocks, new: Blocks, sources: NDArray[np.int64], J: Influence) -> Influence:
        had_length, tile = J.J.shape[1:]
        length = had_length
        if length == old.kept:  # there is no room, unless moving to the same patterns asks for it
            length = math.ceil(ROOM * new.kept) if new is old else new.kept
        elif length < new.kept:
            length = math.ceil(GROWTH * new.kept)
        had, has = binding.influence_places(old, tile), binding.influence_places(new, tile)
        at = np.full(length, had_length)
        at[: new.kept] = place_sources(had, has, sources, new.states, had_length)
        return J._replace(J=_take(J.J, at.astype(np.int32)))

    def influence_axes(self) -> Any:
        J: Any = PartitionSpec(BATCH, PARAMS)
        fresh: Any = PartitionSpec(BATCH)
        return Lanes(J, fresh)

    def influence_resharding(self, blocks: Blocks, batch_size: int) -> Any:
        tile, own_tile = _tile(batch_size), _tile(batch_size // self.share.batch)
        order = None if (tile == 1) == (own_tile == 1) else _block_order(blocks, from_strips=tile > 1)
        part_of, sizes = assignment(blocks, self.share.params), blocks.heights * blocks.widths
        of_lanes = partial(Resharding, batch_size, self.share, tile=tile, own_tile=own_tile)
        J: Any = of_lanes(split=Split(part_of, sizes, self.share.params, order))
        fresh: Any = of_lanes(split=WHOLE)
        return Lanes(J, fresh)

    def zero_credit(self, blocks: Blocks, batch_size: int, dtype: Any) -> Credit:
        most = max(part.credits for part in partition(blocks, self.share.params))
        return jnp.zeros((self._room(blocks, most), -(-batch_size // TILE) * TILE), dtype)

    def credit_step(self, blocks: Blocks, Lambda: Credit, D: jax.Array, delta: jax.Array) -> tuple[Credit, jax.Array]:
        lanes = Lambda.shape[1]
        credit = jax.ShapeDtypeStruct((blocks.groups.entries.nnz, lanes), D.dtype)
        call = _call("credit_step", (_like(Lambda), credit), in_place=True)
        values = _filled(D, lanes), _filled(delta, lanes), self.share.part
        Lambda, at_entries = call(Lambda, *values, plan=self._plan(blocks))
        return Lambda, at_entries[:, : D.shape[1]]


def _multiplied(of: Affine) -> tuple[jax.Array, jax.Array, binding.PlanName]:
    """A matrix's values, what they are multiplied with, and its plan; or the product, nothing, and no plan."""
    matrix, x = of.matrix, of.x
    if isinstance(matrix, NativeMatrix) and jnp.issubdtype(x.dtype, jnp.floating):
        return matrix.values, x, matrix.plan
    product = jax.vmap(partial(multiply, matrix), in_axes=-1, out_axes=-1)(x)
    return product, jnp.zeros((0, product.shape[1]), product.dtype), binding.PlanName()


def _tile(batch_size: int) -> int:
    """Lanes that stand together in J. States are saved, so it depends on the batch alone and not on the machine."""
    if batch_size < TILE:
        return 1  # where lanes do not fill a vector, columns do
    return WIDE_TILE if -(-batch_size // TILE) % 2 == 0 else TILE  # no more lanes are empty for it


def _block_order(blocks: Blocks, *, from_strips: bool) -> Order:
    """From places of blocks that are stored in strips to places of blocks in rows, or the other way."""
    heights, widths = blocks.heights, blocks.widths
    most = np.array([binding.most_strip_columns(int(max(height, 1))) for height in heights])
    strips = -(-widths // most)

    def order(units: NDArray[Any], places: NDArray[Any], to_part: bool) -> NDArray[Any]:
        height, width, count = heights[units], widths[units], strips[units]
        is_in_strips = to_part == from_strips
        column = places // height if is_in_strips else places % width  # of strips, one that is in the same strip
        nth = ((column + 1) * count - 1) // width
        first, end = width * nth // count, width * (nth + 1) // count
        if is_in_strips:
            row, column = np.divmod(places - height * first, end - first)
            return row * width + first + column
        return height * first + places // width * (end - first) + column - first

    return order


def _filled(values: jax.Array, lanes: int) -> jax.Array:
    """Values [..., B] with lanes of zeros behind them, up to whole tiles: J and its gradient stay zero there."""
    missing = lanes - values.shape[-1]
    return values if missing == 0 else jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])


_take = jax.jit(partial(jnp.take, axis=1, mode="fill", fill_value=0))


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _call(target: str, results: Any, *, in_place: bool = False) -> Any:
    """A call of the compiled part; what is vmapped over stands in front of every operand."""
    binding.register()
    call = jax.ffi.ffi_call(
        f"snapgrad_{target}",
        results,
        vmap_method="broadcast_all",
        input_output_aliases={0: 0} if in_place else None,
    )
    return lambda *operands, **attributes: varying(call(*operands, **attributes), operands)
