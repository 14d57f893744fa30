"""A network's counts on a mesh of devices: what each of them holds, computes and sends.

    batch     lanes are split over this axis, and gradients summed over it
    params    blocks of J are split over this one; states and D are worked out on every device

A ring passes 2 (n - 1) / n of what n devices sum to each of them, and (n - 1) / n of what they gather.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from snapgrad.planning.expectations import Counts

FLOAT = 4  # bytes
# Of the roofline, that the fused step reaches: the median over orders 2 and 3 in docs/performance.md, rounded.
EFFICIENCY = 0.5


class Device(NamedTuple):
    """One of them, and what connects it."""

    flops: float  # a second, of a matrix product
    bytes: float  # a second, read and written
    network: float  # bytes a second, received
    memory: float  # bytes


class Mesh(NamedTuple):
    """So many devices along each axis."""

    batch: int
    params: int

    @property
    def devices(self) -> int:
        return self.batch * self.params

    def __str__(self) -> str:
        return f"batch={self.batch},params={self.params}"


class Load(NamedTuple):
    """Of one device, for one step with a weight update."""

    memory: float  # bytes held: parameters, states and J
    flops: float
    traffic: float  # bytes of J that are read and written
    network: float  # bytes received
    seconds: float


def load(counts: Counts, batch: int, mesh: Mesh, device: Device) -> Load:
    """What SnAp puts on every device of the mesh; blocks are many and small enough to be shared out evenly."""
    lanes = batch / mesh.batch
    influence = FLOAT * lanes * counts.kept / mesh.params
    flops = lanes * (counts.forward + counts.influence / mesh.params)
    gradient = FLOAT * counts.params
    summed = 2 * (mesh.batch - 1) / mesh.batch * gradient / mesh.params
    gathered = (mesh.params - 1) / mesh.params * gradient
    roofline = max(flops / device.flops, 2 * influence / device.bytes)
    return Load(
        memory=influence + _replicated(counts, lanes),
        flops=flops,
        traffic=2 * influence,
        network=summed + gathered,
        seconds=roofline / EFFICIENCY + (summed + gathered) / device.network,
    )


def _replicated(counts: Counts, lanes: float) -> float:
    """Bytes that devices of the `params` axis hold alike."""
    return FLOAT * (lanes * counts.states + counts.params)


def bptt_memory(counts: Counts, batch: int, window: int) -> float:
    """Bytes of parameters and of the states of a window, on one device."""
    return FLOAT * (batch * window * counts.states + counts.params)


def fastest(counts: Counts, batch: int, devices: int, device: Device) -> Mesh | None:
    """The mesh of so many devices that takes least time, of those that fit if any does; None if there is no mesh."""
    meshes = [
        Mesh(lanes, devices // lanes)
        for lanes in _divisors(batch)
        if devices % lanes == 0 and devices // lanes <= counts.blocks
    ]

    def rank(mesh: Mesh) -> tuple[bool, float]:
        found = load(counts, batch, mesh, device)
        return found.memory > device.memory, found.seconds

    return min(meshes, key=rank, default=None)


def smallest(counts: Counts, batch: int, device: Device) -> Mesh | None:
    """The mesh of fewest devices whose memory is enough, of two alike the faster one; None if none is."""
    meshes = []
    for split in _divisors(batch):
        lanes = batch / split
        room = device.memory - _replicated(counts, lanes)
        if room > 0:
            mesh = Mesh(split, max(1, math.ceil(FLOAT * lanes * counts.kept / room)))
            meshes += [mesh] if mesh.params <= counts.blocks else []
    return min(meshes, key=lambda mesh: (mesh.devices, load(counts, batch, mesh, device).seconds), default=None)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
