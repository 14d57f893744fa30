"""Named features to a vector of a fixed number of slots.

    a number    in the slot of its name, standardised by what was seen there before (or as it is)
    a boolean   in the slot of its name, as 1 or -1
    a string    1 in the slot of its name and value together
    missing     None, NaN or not there at all: 0, which is the mean of a standardised number
    a date      not read: that samples follow one another is known, and what else matters of it can be given as a number

A name takes the next free slot when it is first learnt, and counts from the next sample on. When three quarters of the
slots are taken, all further names share the last quarter by a hash, with a sign: memory stays constant whatever comes,
and what comes late, such as the thousandth value of a string, is told apart less well.
"""

from __future__ import annotations

import datetime
import math
import numbers
import operator
import zlib
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from snapgrad import arguments
from snapgrad.streams.moments import Moments

Sample = Mapping[Any, Any]
Key = Hashable  # the name of a number or a boolean; name and value of a string
LARGEST = float(np.finfo(np.float32).max)


class Word(NamedTuple):
    """The key of a string: its name and value."""

    name: Hashable
    value: str


class Reading(NamedTuple):
    """A sample as it is read."""

    values: list[float]  # by slot
    numbers: list[tuple[Moments, float]]  # that there are moments of already
    new: list[tuple[Key, float | None]]  # keys without a slot, each with its number if it has one


class Features:
    """Encodes samples; `learn` also takes in their names and moments, `encode` changes nothing."""

    def __init__(self, slots: int, standardise: bool) -> None:
        arguments.positive_integer("features", slots)
        arguments.boolean("standardise", standardise)
        self.slots, self.standardise = slots, standardise
        self.owned = max(1, slots - slots // 4)  # the others are shared
        self.places: dict[Key, int] = {}
        self.moments = [Moments() for _ in range(slots)]
        self._last: tuple[tuple[Any, ...], tuple[Any, ...], Reading] | None = None  # names, values

    def encode(self, x: Sample) -> np.ndarray:
        """The vector [slots] of a sample."""
        reading = self._read(x)
        self._last = tuple(x), tuple(x.values()), reading
        return np.array(reading.values, np.float32)

    def learn(self, x: Sample) -> np.ndarray:
        """The vector of a sample, by what was seen before it; then the sample is taken in."""
        values, numbers, new = self._recall(x) or self._read(x)
        self._last = None
        for moments, number in numbers:
            moments.take(number)
        for key, value in sorted(new, key=lambda pair: _text(pair[0])):  # the order in a dict means nothing
            if len(self.places) < self.owned:
                self.places[key] = len(self.places)
            slot, sign = self._place(key)
            if value is not None:
                self.moments[slot].take(sign * value)
        return np.array(values, np.float32)

    def state(self) -> Any:
        """Names and moments, as JSON has them where names are strings."""
        names = [[*key] if isinstance(key, Word) else [key] for key in self.places]
        return {"names": names, "moments": [moments.state for moments in self.moments]}

    def restore(self, state: Any) -> None:
        """Goes on from there."""
        keys = (Word(*name) if len(name) == 2 else name[0] for name in state["names"])
        self.places = {key: place for place, key in enumerate(keys)}
        self.moments = [Moments(*moments) for moments in state["moments"]]
        self._last = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def _recall(self, x: Sample) -> Reading | None:
        """The reading of a sample that was the last to be encoded: most are predicted, then learnt."""
        if self._last is None or not isinstance(x, Mapping) or tuple(x) != self._last[0]:
            return None
        # The very same objects: 1, True and 1.0 are equal, and are read differently.
        return self._last[2] if all(map(operator.is_, x.values(), self._last[1])) else None

    def _read(self, x: Sample) -> Reading:
        if not isinstance(x, Mapping):
            raise TypeError(f"`x` must be a dict of features by name, got {type(x).__name__} {arguments.shown(x)}")
        reading = Reading([0.0] * self.slots, [], [])
        for name, value in x.items():
            # Nearly always it is a number like those before it; this costs a third of `_add`.
            slot = self.places.get(name) if type(value) is float else None
            if slot is not None and self.standardise:
                moments = self.moments[slot]
                distance = value - moments.mean
                if -moments.far < distance < moments.far:  # neither NaN nor infinite
                    reading.values[slot] = distance / moments.deviation
                    reading.numbers.append((moments, value))
                    continue
            self._add(reading, name, _plain(name, value))
        return reading

    def _add(self, reading: Reading, name: Hashable, value: float | bool | str | None) -> None:
        """Adds one feature to what is read of a sample."""
        if value is None or value != value:
            return
        key = Word(name, value) if isinstance(value, str) else name
        number = value if isinstance(value, float) and abs(value) <= LARGEST else None
        if key not in self.places and len(self.places) < self.owned:
            reading.new.append((key, number))
            return
        slot, sign = self._place(key)
        if number is None:
            reading.values[slot] += sign * _unscaled(value)
        elif self.standardise:
            reading.numbers.append((self.moments[slot], sign * number))
            reading.values[slot] += self.moments[slot].standardised(sign * number)
        else:
            reading.values[slot] += sign * number

    def _place(self, key: Key) -> tuple[int, int]:
        """The slot of a key, and its sign there."""
        if (place := self.places.get(key)) is not None:
            return place, 1
        code = _name_code(key) if type(key) is str else _code(key)
        shared = max(1, self.slots - self.owned)
        return self.slots - 1 - code % shared, 1 if code & 1 << 31 else -1


def _plain(name: Hashable, value: Any) -> float | bool | str | None:
    """A value as one of Python's own types; refuses what is neither number, boolean, string nor None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, datetime.date | datetime.time | np.datetime64):
        return None
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Real):  # NumPy's too
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # type: ignore[operator]  # an int
    raise TypeError(
        f"`x` must have a number, a boolean, a string or None as feature {arguments.shown(name)}, "
        f"got {type(value).__name__} {arguments.shown(value)}"
    )


def _unscaled(value: float | bool | str) -> float:
    """What stands for a value that has no moments."""
    if isinstance(value, str):
        return 1.0
    if isinstance(value, bool):
        return 1.0 if value else -1.0
    return math.copysign(math.inf, value)  # beyond float32: for the learner's guards to deal with


def _code(key: Key) -> int:
    return zlib.crc32(_text(key).encode(errors="surrogatepass"))


_name_code = lru_cache(maxsize=1024)(_code)


def _text(key: Key) -> str:
    """A key as text: what it is sorted and hashed by, the same in every process."""
    return f"{type(key).__name__} {key!r}"
