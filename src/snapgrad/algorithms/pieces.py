"""Arrays of a mesh as those of one device, slice by slice: no memory ever holds more than its own part and a slice.

`Pieces` reads such an array from the devices, in the order in which a file has it; `placed` puts one that is in a file,
or in memory, on the devices. Where the mesh spans several processes, all of them go through the slices together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from snapgrad.algorithms.placement import fetch, put, wait_for_all
from snapgrad.kernels.resharding import WHOLE, Resharding
from snapgrad.kernels.share import Share


class Pieces:
    """An array that is spread over a mesh, as one device would have it: its shape, and an iterator over its slices."""

    def __init__(self, array: Any, how: Resharding, shape: tuple[int, ...]) -> None:
        """`shape`: that of one device."""
        self._array, self._how = array, how
        self.shape, self.dtype = shape, np.dtype(array.dtype)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Slices that follow one another, in every process; all must take the same ones at the same time."""
        shards = {
            _number(self._array, self._how, shard.index): np.asarray(shard.data)
            for shard in self._array.addressable_shards
            if shard.replica_id == 0
        }
        wait_for_all()
        for piece in self._how.to_saved(shards, self.shape, self.dtype):
            yield _sum_over_processes(piece)

    def whole(self) -> NDArray[Any]:
        """The whole array, in the memory of every process."""
        flat, filled = np.empty(self.shape, self.dtype).reshape(-1), 0
        for piece in self:
            flat[filled : filled + piece.size] = piece.reshape(-1)
            filled += piece.size
        return flat.reshape(self.shape)


def reshardings(specs: Any, like: Any, share: Share, lanes: int) -> Any:
    """For every array of a tree a `Resharding`, or a mark where all devices have the whole of it.

    `specs` is a tree of `Resharding`s and `PartitionSpec`s; one of these stands for all arrays below it.
    """

    def of_part(spec: Any, part: Any) -> Any:
        if isinstance(spec, PartitionSpec):
            spec = Resharding(lanes, share, WHOLE) if spec else _REPLICATED
        return jax.tree.map(lambda leaf: spec, part)

    return jax.tree.map(of_part, specs, like, is_leaf=_is_spec)


def as_pieces(tree: Any, like: Any, how: Any) -> Any:
    """A tree of a mesh with the structure that `like` has on one device; what all devices have is fetched."""

    def piece(leaf: Any, one: Any, how: Any) -> Any:
        return fetch(leaf) if how is _REPLICATED else Pieces(leaf, how, one.shape)

    leaves, structure = jax.tree.leaves(tree), jax.tree.structure(like)
    return jax.tree.unflatten(structure, map(piece, leaves, jax.tree.leaves(like), jax.tree.leaves(how)))


def on_mesh(tree: Any, like: Any, specs: Any, how: Any, mesh: Mesh) -> Any:
    """A tree of one device on a mesh, in the structure that `like` has there; `specs` say how it is split."""
    shardings = jax.tree.map(
        lambda spec, part: jax.tree.map(lambda _: NamedSharding(mesh, spec), part), specs, like, is_leaf=_is_spec
    )

    def place(leaf: Any, like: Any, how: Any, sharding: NamedSharding) -> jax.Array:
        return put(leaf, sharding) if how is _REPLICATED else placed(np.asarray(leaf), how, like, sharding)

    leaves = map(place, *map(jax.tree.leaves, (tree, like, how, shardings)))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


_REPLICATED = object()  # in place of a Resharding


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec | Resharding)


def placed(saved: NDArray[Any], how: Resharding, like: Any, sharding: NamedSharding) -> jax.Array:
    """An array of one device, in a file that is mapped or in memory, spread over a mesh; `like` has its shape there."""
    shape = sharding.shard_shape(like.shape)
    parts = []
    for device, index in sharding.addressable_devices_indices_map(like.shape).items():
        assert index is not None
        with jax.default_device(device):
            parts.append(_shard(saved, how, shape, *_number(like, how, index)))
    return jax.make_array_from_single_device_arrays(like.shape, sharding, parts)


def _shard(saved: NDArray[Any], how: Resharding, shape: tuple[int, ...], shard: int, part: int) -> jax.Array:
    """The array of one device, into which slices are put as they come."""
    made: Any = None
    for tile, place, values in how.from_saved(saved, shard, part, shape):
        if values.size == math.prod(shape):
            return jnp.array(values.reshape(shape))
        made = jnp.zeros(shape, values.dtype) if made is None else made
        made = _put(made, values, tile, place, how.split.room)
    return jnp.zeros(shape, saved.dtype) if made is None else made


@partial(jax.jit, donate_argnums=0, static_argnums=4)
def _put(array: jax.Array, values: jax.Array, tile: int, place: int, room: int) -> jax.Array:
    """The array with other values from a place on; in its own memory."""
    form = array.reshape(-1, room, *values.shape[1:])
    return jax.lax.dynamic_update_slice(form, values[None], (tile, place, 0, 0)).reshape(array.shape)


def _number(array: Any, how: Resharding, index: tuple[slice, ...]) -> tuple[int, int]:
    """Which device along `batch` and along `params` has that part of the array of a mesh."""
    along_batch = (index[0].start or 0) * how.share.batch // max(1, array.shape[0])
    if how.split.parts == 1:
        return along_batch, 0
    return along_batch, (index[1].start or 0) * how.split.parts // max(1, array.shape[1])


def _sum_over_processes(piece: NDArray[Any]) -> NDArray[Any]:
    """A piece of which every process has some elements, and zeros in place of the others."""
    if jax.process_count() == 1:
        return piece
    sharding, add = _adding()
    own = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)  # of bytes any sum with zeros is exact
    summed = add(jax.make_array_from_process_local_data(sharding, own[None]))
    return np.asarray(summed.addressable_data(0)).view(piece.dtype).reshape(piece.shape)


@lru_cache(maxsize=1)
def _adding() -> tuple[NamedSharding, Any]:
    """How one row of each process is spread over a device of each, and a program that adds them."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([first[process] for process in range(jax.process_count())]), ("processes",))
    add = jax.jit(lambda rows: rows.sum(0, dtype=rows.dtype), out_shardings=NamedSharding(mesh, PartitionSpec()))
    return NamedSharding(mesh, PartitionSpec("processes")), add
