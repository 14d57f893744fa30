"""Any algorithm over the devices of a mesh: lanes of the batch are split, and so are blocks of J.

    mesh = jax.make_mesh((2, 4), ("batch", "params"))
    algorithm = sg.shard(sg.snap(cell, loss, order=2), mesh)

Along `batch` every algorithm splits its lanes. Along `params`, `snap`, `rtrl` and `rflo`, in each form, split their
blocks by cost, and `snap_topk` the columns of J. The others have nothing there that is worth a message: `bptt` and
`frozen` remember nothing, and what `uoro`, `kf_rtrl` and `ok` remember is small, or enters every step as a whole; their
devices along `params` all do the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import Mesh

from snapgrad.algorithms.interface import Algorithm
from snapgrad.algorithms.placement import Placement
from snapgrad.kernels.share import BATCH, PARAMS


def shard(algorithm: Algorithm, mesh: Mesh) -> Algorithm:
    """The same algorithm on all devices of a mesh, with the same interface and, to rounding, the same gradients.

    Its states are spread over the devices. `algorithm.gather(state, params)` gives one as the algorithm without a mesh
    has it, to be saved, and `algorithm.scatter(state, params)` takes such a one, whatever mesh it came from.

    Args:
        algorithm: one such as `sg.snap` returns.
        mesh: a `jax.sharding.Mesh` with the axes `batch`, over which lanes are split, `params`, over which blocks of J
            are split, or both. The batch must be a multiple of the devices along `batch`.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"`algorithm` must be one such as sg.snap returns, got {type(algorithm).__name__}")
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` must be a jax.sharding.Mesh, got {type(mesh).__name__}")
    known = (BATCH, PARAMS)
    if not mesh.axis_names or not set(mesh.axis_names) <= set(known):
        given = ", ".join(map(repr, mesh.axis_names)) or "none"
        raise ValueError(f"`mesh` must have the axes 'batch', 'params' or both, got {given}")
    axes: list[Any] = [mesh.axis_names.index(axis) for axis in known if axis in mesh.axis_names]
    devices = np.transpose(mesh.devices, axes).reshape([mesh.shape.get(axis, 1) for axis in known])
    return algorithm.on(Placement(Mesh(devices, known)))
