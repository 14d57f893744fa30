"""Which elements of an array of one device the devices of a mesh have, so that states are saved and resumed by slices.

What is saved is the state of one device, whatever mesh it comes from. Every array that a mesh splits is, in both forms,

    on one device          [tiles, places, tile, width]
    on each of a mesh      [tiles, room, tile, width]     tiles of the lanes, and places, that the device has

in which lane i stands at i // tile and i % tile. No table of all places is made: that would be as large as J.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snapgrad.kernels.share import Share

SLICE_BYTES = 1 << 23  # of a slice with its indices, unless a single place of a tile takes more
INDEX_BYTES = 96  # that working out where a place goes takes beside its values: a dozen integers

Order = Callable[[NDArray[Any], NDArray[Any], bool], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Split:
    """Places in units that go to one part each. On one device they stand unit by unit, and so they do in every part.

    `order(units, places, to_part)` gives the place within its unit that another order has, if parts have another.
    """

    part_of: NDArray[np.int64]  # [units]
    sizes: NDArray[np.int64]  # [units] places of each
    parts: int
    order: Order | None = None

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """[units + 1] the first place of each unit on one device."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def units(self) -> list[NDArray[np.int64]]:
        """The units of each part."""
        return [np.flatnonzero(self.part_of == part) for part in range(self.parts)]

    @cached_property
    def part_starts(self) -> NDArray[np.int64]:
        """[units] the first place of each unit in its part."""
        starts = np.empty(len(self.sizes), np.int64)
        for own in self.units:
            starts[own] = np.cumsum(self.sizes[own]) - self.sizes[own]
        return starts

    @property
    def places(self) -> int:
        """Places on one device."""
        return int(self.starts[-1])

    @cached_property
    def counts(self) -> list[int]:
        """Places of each part."""
        return [int(self.sizes[own].sum()) for own in self.units]

    @property
    def room(self) -> int:
        """Places on each device of a mesh: as many as the largest part has."""
        return max(self.counts)

    def to_parts(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The part of every place from `first` to `end` of one device, and the place there."""
        units, within = _within(self.starts, first, end)
        if self.order is not None:
            within = self.order(units, within, True)
        return self.part_of[units], self.part_starts[units] + within

    def from_part(self, part: int, first: int, end: int) -> NDArray[np.int64]:
        """The place on one device of every place from `first` to `end` of a part, as far as it has any."""
        own = self.units[part]
        nth, within = _within(np.append(self.part_starts[own], self.counts[part]), first, min(end, self.counts[part]))
        units = own[nth]
        if self.order is not None:
            within = self.order(units, within, False)
        return self.starts[units] + within


WHOLE = Split(np.zeros(1, np.int64), np.ones(1, np.int64), 1)  # one place, which all devices have


class Run(NamedTuple):
    """Lanes that stand together in both forms."""

    tile: int  # on one device
    lanes: slice  # in that tile
    shard: int  # which of the devices along `batch`
    own_tile: int  # on that device
    own_lanes: slice


@dataclass(frozen=True, eq=False)
class Resharding:
    """One array of a state, as it is on one device and on those of a mesh."""

    lanes: int  # of the whole batch
    share: Share
    split: Split
    tile: int = 1  # on one device
    own_tile: int = 1  # on each of the mesh

    @property
    def own_lanes(self) -> int:
        return self.lanes // self.share.batch

    def runs(self, first: int, end: int) -> Iterator[Run]:
        """The lanes from `first` to `end`."""
        while first < end:
            tile, at = divmod(first, self.tile)
            shard, own = divmod(first, self.own_lanes)
            own_tile, own_at = divmod(own, self.own_tile)
            n = min(end - first, self.tile - at, self.own_lanes - own, self.own_tile - own_at)
            yield Run(tile, slice(at, at + n), shard, own_tile, slice(own_at, own_at + n))
            first += n

    def to_saved(
        self, shards: dict[tuple[int, int], NDArray[Any]], shape: tuple[int, ...], dtype: Any
    ) -> Iterator[NDArray[Any]]:
        """The array of one device by slices that follow one another; zero where none of the `shards` has an element.

        `shards` are arrays of some devices, by their number along `batch` and along `params`.
        """
        if math.prod(shape) == 0:
            return
        width = math.prod(shape) // (self.split.places * self.tile * self._tiles(self.lanes, self.tile))
        views = {at: array.reshape(-1, self.split.room, self.own_tile, width) for at, array in shards.items()}
        for tile in range(self._tiles(self.lanes, self.tile)):
            runs = list(self.runs(tile * self.tile, min(self.lanes, (tile + 1) * self.tile)))
            for first, end in _slices(self.split.places, self.tile * width * np.dtype(dtype).itemsize):
                part_of, places = self.split.to_parts(first, end)
                saved = np.zeros((end - first, self.tile, width), dtype)
                for part in range(self.split.parts):
                    own = np.flatnonzero(part_of == part)
                    for run in runs:
                        if len(own) and (run.shard, part) in views:
                            view = views[run.shard, part][run.own_tile, :, run.own_lanes]
                            saved[own, run.lanes] = view[places[own]]
                yield saved

    def from_saved(
        self, saved: NDArray[Any], shard: int, part: int, shape: tuple[int, ...]
    ) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """The array of one device of the mesh by slices [places, tile, width], with the tile and place of each.

        `shape` is that of the device's array; `saved` may be a file that is mapped: only what is needed is read.
        """
        if math.prod(shape) == 0:
            return
        tiles = self._tiles(self.own_lanes, self.own_tile)
        width = math.prod(shape) // (self.split.room * self.own_tile * tiles)
        view = saved.reshape(-1, self.split.places, self.tile, width)
        for own_tile in range(tiles):
            lanes = shard * self.own_lanes + own_tile * self.own_tile
            last = min(lanes + self.own_tile, (shard + 1) * self.own_lanes)
            for first, end in _slices(self.split.room, self.own_tile * width * saved.dtype.itemsize):
                places = self.split.from_part(part, first, end)
                values = np.zeros((end - first, self.own_tile, width), saved.dtype)
                for run in self.runs(lanes, last):
                    values[: len(places), run.own_lanes] = view[run.tile, :, run.lanes][places]
                yield own_tile, first, values

    @staticmethod
    def _tiles(lanes: int, tile: int) -> int:
        return -(-lanes // tile)


def _slices(places: int, bytes_a_place: int) -> Iterator[tuple[int, int]]:
    step = max(1, SLICE_BYTES // (bytes_a_place + INDEX_BYTES))
    return ((first, min(first + step, places)) for first in range(0, places, step))


def _within(starts: NDArray[Any], first: int, end: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The number of the unit of every place from `first` to `end`, and the place within it."""
    if first >= end:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # Of units without a place the last that begins there is the one which has it.
    lowest = int(np.searchsorted(starts, first, "right")) - 1
    highest = int(np.searchsorted(starts, end, "left"))
    counts = np.minimum(starts[lowest + 1 : highest + 1], end) - np.maximum(starts[lowest:highest], first)
    units = np.repeat(np.arange(lowest, highest), counts)
    return units, np.arange(first, end) - starts[units]
