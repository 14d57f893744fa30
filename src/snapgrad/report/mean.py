"""The curves of several seeds as one: their mean, and their range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

POINTS = 400
FEW = 12  # records, or changes of a level


class Curve(NamedTuple):
    """A metric against tokens or seconds: the mean over the seeds, and the range."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean(seeds: Sequence[tuple[np.ndarray, np.ndarray]], metric: str) -> Curve:
    """Of the x and the values of each seed, where all have records; empty if none has any.

    One whose records do not overlap with the others' (it was stopped early) is left out.
    """
    kept = sorted((seed for seed in seeds if len(seed[0])), key=lambda seed: -len(seed[0]))
    if not kept:
        return Curve(*(np.zeros(0) for _ in Curve._fields))
    begin, end = _shared(kept)
    while len(kept) > 1 and (begin > end or (begin == end and len(kept[0][0]) > 1)):
        kept = kept[:-1]
        begin, end = _shared(kept)
    if metric == "level":  # constant until it changes: where one does is all there is to draw
        changed = [x[1:][np.diff(v) != 0] for x, v in kept]
        grid = np.unique(np.clip([begin, *np.concatenate(changed), end], begin, end))
        values = [v[np.searchsorted(x, grid, side="right") - 1] for x, v in kept]
    else:
        first = kept[0][0]
        # Where there are few records, only at those of the first run.
        grid = np.linspace(begin, end, POINTS) if len(first) > FEW else np.unique(np.clip(first, begin, end))
        values = [np.interp(grid, x, v) for x, v in kept]
    return Curve(grid, np.mean(values, axis=0), np.min(values, axis=0), np.max(values, axis=0))


def _shared(seeds: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """From where to where all of them have records."""
    return max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds)
