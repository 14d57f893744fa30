"""Where an algorithm runs: on one device, or on those of a mesh, each with a share of the lanes and of the blocks of J.

On a mesh all devices run one program (`jax.shard_map`). A device steps its own lanes, works out D and the states
itself, and updates its own blocks. Then gradients travel, once a window: those of a device's parameters are summed over
the devices that have the same blocks of other lanes (axis `batch`), and gathered from those with other blocks
(`params`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from snapgrad.kernels.share import ALL, BATCH, PARAMS, Share
from snapgrad.sparsity.matrix import append_zero

_barriers = itertools.count()  # as many in every process
LONGEST_WAIT = 3_600_000  # milliseconds

# How arrays are split; a tree of them stands where the arrays do.
EVERYWHERE: Any = PartitionSpec()
LANES: Any = PartitionSpec(BATCH)  # [B, ...]
WINDOW: Any = PartitionSpec(None, BATCH)  # [T, B, ...]
LANES_AND_BLOCKS: Any = PartitionSpec(BATCH, PARAMS)  # [B, places, ...]


@dataclass(frozen=True)
class Placement:
    """A mesh with the axes `batch` and `params`, or None for one device."""

    mesh: Mesh | None = None

    @cached_property
    def share(self) -> Share:
        """What each device has to do."""
        return ALL if self.mesh is None else Share(**self.mesh.shape)

    @property
    def part_in_memory(self) -> float:
        """The part of all lanes and blocks that lies in one memory: that of a device, or on CPU of a process."""
        return 1.0 if self.mesh is None else self._devices_in_memory / self.mesh.size

    @property
    def lanes_in_memory(self) -> float:
        """The part of all lanes that the devices of one memory step; above one, where several step the same lanes."""
        return 1.0 if self.mesh is None else self._devices_in_memory / self.share.batch

    @property
    def _devices_in_memory(self) -> int:
        assert self.mesh is not None
        return len(self.mesh.local_devices) if self.mesh.devices.flat[0].platform == "cpu" else 1

    def map(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """`function` on every device, each with its part of what the specs split."""
        if self.mesh is None:
            return function
        # Unchecked: the check refuses constants in loops and derivatives, which losses and cells of users may have, and
        # those of asdex do have.
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def among_all_lanes(self, values: jax.Array) -> jax.Array:
        """Values [T, B] of this device's lanes among those of all, which are zero until they are summed."""
        if self.share.batch == 1:
            return values
        steps, lanes = values.shape
        zeros = jnp.zeros((steps, self.share.batch * lanes), values.dtype)
        return jax.lax.dynamic_update_slice_in_dim(zeros, values, jax.lax.axis_index(BATCH) * lanes, axis=1)

    def replicated(self, tree: Any) -> Any:
        """What is worked out on every device as a whole, where XLA might split it and have to send the parts around."""
        if self.mesh is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, NamedSharding(self.mesh, EVERYWHERE))

    def sum(self, tree: Any, grads: Any, owners: NDArray[np.int64] | None) -> tuple[Any, Any]:
        """A tree and the cell's gradients, each summed over all lanes; and the gradients gathered from their `owners`.

        `owners` has the part of every parameter; None: all devices have worked out all of them.
        """
        if self.mesh is None:
            return tree, grads
        if owners is None:
            return _sum_over_batch((tree, grads), self.share.batch)
        flat, unravel = ravel_pytree(grads)
        own, place = _exchange(owners, self.share.params)
        mine = append_zero(flat)[jnp.asarray(own)[self.share.part]]
        tree, mine = _sum_over_batch((tree, mine), self.share.batch)
        return tree, unravel(jax.lax.all_gather(mine, PARAMS, tiled=True)[place])

    def put(self, tree: Any, specs: Any) -> Any:
        """Arrays of this process's memory, the same in every process, on the devices that the specs name."""
        mesh = self.mesh
        if mesh is None:
            return jax.tree.map(jnp.asarray, tree)

        def place(spec: PartitionSpec, part: Any) -> Any:
            return jax.tree.map(lambda leaf: put(leaf, NamedSharding(mesh, spec)), part)

        return jax.tree.map(place, specs, tree, is_leaf=lambda node: isinstance(node, PartitionSpec))


ONE_DEVICE = Placement()


def fetch(tree: Any) -> Any:
    """Arrays that all devices have, in this process's memory; keys and shapes stay what they are."""
    return jax.tree.map(_fetch, tree)


def wait_for_all() -> None:
    """Waits for all processes, before they exchange anything in a program that is new.

    They first connect then, for which Gloo waits 30 seconds, and compiling may take some of them longer than others.
    """
    if jax.process_count() > 1:
        # JAX has no public barrier that does without a connection of this kind.
        client: Any = distributed.global_state.client
        client.wait_at_barrier(f"snapgrad {next(_barriers)}", LONGEST_WAIT)


def _sum_over_batch(tree: Any, devices: int) -> Any:
    """The sum of every leaf over the devices along `batch`, in one message: each of several would be waited for."""
    if devices == 1:
        return tree  # XLA would leave a sum over groups of one device in the program, and wait for it
    leaves, structure = jax.tree.flatten(tree)
    together: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        together.setdefault(leaf.dtype, []).append(number)
    vectors = [jnp.concatenate([leaves[n].ravel() for n in same]) for same in together.values()]
    if devices == 2:  # they send each other what they have, once; a sum that goes around would be sent, and sent back
        summed = [jax.lax.all_gather(vector, BATCH).sum(axis=0) for vector in vectors]
    else:
        summed = jax.lax.psum(vectors, BATCH)
    for vector, same in zip(summed, together.values(), strict=True):
        ends = np.cumsum([leaves[n].size for n in same])
        for n, part in zip(same, jnp.split(vector, ends[:-1]), strict=True):
            leaves[n] = part.reshape(leaves[n].shape)
    return jax.tree.unflatten(structure, leaves)


def _exchange(owners: NDArray[np.int64], parts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The parameters of every part, padded to the most of any; and where each is when the parts are side by side."""
    order, counts = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=parts)
    nth = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners[order]]
    own = np.full((parts, counts.max(initial=0)), len(owners))
    own[owners[order], nth] = order
    place = np.empty(len(owners), np.int64)
    place[order] = owners[order] * own.shape[1] + nth
    return own, place


def is_key(leaf: Any) -> bool:
    """Whether it is a key of `jax.random`, or an array of them."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """An array of this process's memory, the same in every process, on the devices that have a part of it."""
    if is_key(leaf):
        return jax.random.wrap_key_data(put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _fetch(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(_fetch(jax.random.key_data(leaf))), impl=jax.random.key_impl(leaf))
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return np.asarray(leaf)
    assert leaf.is_fully_replicated
    return np.asarray(leaf.addressable_data(0))
