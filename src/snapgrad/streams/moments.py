"""The running mean and deviation of a stream of numbers, robust to single outliers.

Welford's recursion (Technometrics, 1962): with d = v - mean, mean <- mean + d / n, squares <- squares + d (d - d / n).
A value further than `FAR` deviations from the mean counts as one at that distance: a single one of 1e12 does not make
all others vanish, and a level that has moved for good is followed all the same.
"""

from __future__ import annotations

import math

FAR = 10.0  # deviations


class Moments:
    """Takes in numbers one by one; standardises others by what it has seen."""

    __slots__ = ("count", "deviation", "far", "mean", "squares")

    def __init__(self, count: int = 0, mean: float = 0.0, squares: float = 0.0) -> None:
        self.count, self.mean, self.squares = count, mean, squares
        self.deviation = math.sqrt(squares / count) if count else 0.0
        self.far = FAR * self.deviation

    def take(self, value: float) -> None:
        """Counts a finite number in."""
        self.count += 1
        distance, far = value - self.mean, self.far
        if not -far <= distance <= far and far:
            distance = math.copysign(far, distance)
        step = distance / self.count
        self.mean += step
        self.squares += distance * (distance - step)
        self.deviation = math.sqrt(self.squares / self.count)
        self.far = FAR * self.deviation

    def standardised(self, value: float) -> float:
        """A finite number in deviations from the mean, at most FAR; 0 where nothing was seen yet."""
        distance = value - self.mean
        if not distance or not self.count:
            return 0.0
        return distance / self.deviation if -self.far < distance < self.far else math.copysign(FAR, distance)

    def restored(self, value: float) -> float:
        """The inverse of `standardised`."""
        return self.mean + value * self.deviation

    @property
    def state(self) -> tuple[int, float, float]:
        """What `Moments(*state)` goes on from."""
        return self.count, self.mean, self.squares
