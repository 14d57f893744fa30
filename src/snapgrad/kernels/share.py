"""What one device of a mesh works on: some lanes of the batch, and some blocks of J.

Inside `jax.shard_map` all devices run one program, on lanes and blocks of their own. A kernel knows its `Share` of
both; that of a single device is everything. JAX keeps track of the axes along which values differ between devices; what
is carried through a loop must differ along the same ones from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

BATCH, PARAMS = "batch", "params"  # the axes of a mesh


@dataclass(frozen=True)
class Share:
    """Into how many parts lanes and blocks are split; which of them is ours, `jax.shard_map` says."""

    batch: int = 1
    params: int = 1

    @property
    def part(self) -> jax.Array:
        """The number of this device's blocks."""
        return jnp.int32(0) if self.params == 1 else jax.lax.axis_index(PARAMS)

    def of_lanes(self, draw: Callable[[int], jax.Array], lanes: int, axis: int) -> jax.Array:
        """`draw(lanes of the whole batch)` at the lanes of this device, so that chance does not depend on the mesh."""
        if self.batch == 1:
            return draw(lanes)
        first = jax.lax.axis_index(BATCH) * lanes
        return jax.lax.dynamic_slice_in_dim(draw(self.batch * lanes), first, lanes, axis)


ALL = Share()


def varying(tree: Any, *like: Any) -> Any:
    """The arrays of `tree`, known to differ between devices along all axes along which any of `like` does."""
    axes = frozenset().union(*(_axes(leaf) for leaf in jax.tree.leaves(like)))

    def vary(leaf: Any) -> Any:
        missing = tuple(sorted(axes - _axes(leaf)))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(vary, tree) if axes else tree


def like(other: Any, shape: tuple[int, ...]) -> Any:
    """The type of an array of another shape that differs between devices as `other` does."""
    return other.update(shape=shape, sharding=NamedSharding(other.sharding.mesh, PartitionSpec(*(None for _ in shape))))


def _axes(leaf: Any) -> frozenset[str]:
    kind: Any = jax.typeof(leaf)
    if isinstance(kind, jax.core.ShapedArray):
        return frozenset(kind.mat.varying)
    return frozenset()
