"""A learner for named features: a number, a label, or the next value of a series is predicted, then learnt from.

Each has `predict`, which changes nothing, and `learn`, which returns what `predict` would have said before it. Features
become vectors (`Features`), numbers that are predicted are standardised too, and labels become classes as they appear.
Everything but the learner's arrays is in `state()`, as JSON has it.
"""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from snapgrad import arguments
from snapgrad.learner.online import OnlineLearner
from snapgrad.learner.widening import widen
from snapgrad.streams.features import LARGEST, Features, Sample
from snapgrad.streams.moments import Moments

FEWEST_CLASSES = 4  # that a classifier has room for at first


def new_learner(**settings: Any) -> OnlineLearner:
    """A fresh learner; those with the same settings share what is compiled."""
    try:
        hash(tuple(settings.values()))
    except TypeError:  # an object that cannot be told from others
        return OnlineLearner(**settings)
    return copy.deepcopy(_prototype(jnp.result_type(float), **settings))


@lru_cache(maxsize=32, typed=True)
def _prototype(dtype: Any, **settings: Any) -> OnlineLearner:
    return OnlineLearner(**settings)


class Regression:
    """Predicts a number from named features."""

    def __init__(self, features: int, standardise: bool, **settings: Any) -> None:
        self.features, self.target = Features(features, standardise), Target(standardise)
        self.learner = new_learner(inputs=features, **settings)

    def predict(self, x: Sample) -> float:
        """The number that belongs to a sample."""
        return self.target.restored(self.learner.predict(self.features.encode(x)))

    def learn(self, x: Sample, y: Any) -> float:
        """Learns the number, if there is one; returns the prediction."""
        number, vector = as_number(y), self.features.learn(x)
        mean, scale = self.target.scale
        prediction, _ = self.learner.learn(vector, self.target.learn(number))
        return mean + scale * prediction

    def state(self) -> Any:
        """All but the learner."""
        return {"features": self.features.state(), "target": self.target.moments.state}

    def restore(self, state: Any, learner: OnlineLearner) -> None:
        """Goes on from there."""
        self.features.restore(state["features"])
        self.target.moments, self.learner = Moments(*state["target"]), learner


class Classification:
    """Predicts the probabilities of labels, which appear over time, from named features."""

    def __init__(self, features: int, standardise: bool, **settings: Any) -> None:
        self.features = Features(features, standardise)
        self.settings = {"inputs": features, "loss": "cross_entropy", **settings}
        self.labels: dict[Hashable, int] = {}  # each with its class, in the order of their appearance
        self.room = FEWEST_CLASSES
        self.learner = new_learner(outputs=self.room, **self.settings)

    def predict(self, x: Sample) -> dict[Any, float]:
        """The probability of each label that was seen so far."""
        return self._shares(self.learner.predict(self.features.encode(x)))

    def learn(self, x: Sample, y: Any) -> dict[Any, float]:
        """Learns the label, if there is one; returns the prediction."""
        nothing = y is None or y != y
        if not nothing and not isinstance(y, Hashable):
            raise TypeError(f"`y` must be a label, such as a string, an integer or a boolean, got {arguments.shown(y)}")
        vector = self.features.learn(x)
        known = len(self.labels)
        if not nothing and y not in self.labels:
            self._widen(known + 1)
            self.labels[y] = known
        probabilities, _ = self.learner.learn(vector, -1 if nothing else self.labels[y])
        return self._shares(probabilities[:known])

    def _widen(self, labels: int) -> None:
        """Makes room for that many, twice as much as before each time: compiled programs are for a fixed number."""
        while self.room < labels:
            self.room *= 2
            fresh = new_learner(outputs=self.room, **self.settings)
            widen(self.learner, fresh)
            self.learner = fresh

    def _shares(self, probabilities: np.ndarray) -> dict[Any, float]:
        """The probabilities of the labels alone; some of the classes have none yet."""
        found = [max(float(share), 1e-30) for share in probabilities[: len(self.labels)]]
        total = sum(found)
        return {label: share / total for label, share in zip(self.labels, found, strict=False)}

    def state(self) -> Any:
        """All but the learner."""
        return {"features": self.features.state(), "labels": list(self.labels), "room": self.room}

    def restore(self, state: Any, learner: OnlineLearner) -> None:
        """Goes on from there."""
        self.features.restore(state["features"])
        self.labels = {label: number for number, label in enumerate(state["labels"])}
        self.room, self.learner = state["room"], learner


class Forecast:
    """Predicts the next value of a series from those before it, and from named features if there are any.

    The network reads the value before, in the first entry of its input, and the features of now.
    """

    def __init__(self, features: int, standardise: bool, **settings: Any) -> None:
        self.features, self.target = Features(features, standardise), Target(standardise)
        self.before = 0.0  # the last value as the network reads it; its own prediction where there was none
        self.learner = new_learner(inputs=1 + features, **settings)

    def learn(self, y: Any, x: Sample | None) -> None:
        """Learns the next value, if there is one."""
        number, vector = as_number(y), np.append(self.before, self.features.learn(x or {}))
        target = self.target.learn(number)
        prediction, _ = self.learner.learn(vector, target)
        self.before = target if math.isfinite(target) else prediction

    def predict(self, horizon: int, xs: Sequence[Sample] | None) -> list[float]:
        """The next values, each predicted one read as if it had come."""
        known = [self.features.encode(x) for x in (xs or [])]
        # A power of two: it compiles once a length.
        length = 1 << (horizon - 1).bit_length()
        rest = np.zeros((length, self.features.slots), np.float32)
        rest[: len(known)] = known or 0
        found = self.learner.generate(np.append(self.before, rest[0]), length, features=rest[1:])
        return [self.target.restored(float(value)) for value in np.reshape(found, -1)[:horizon]]


class Target:
    """A number that is predicted, standardised or as it is."""

    def __init__(self, standardise: bool) -> None:
        self.standardise, self.moments = standardise, Moments()

    @property
    def scale(self) -> tuple[float, float]:
        """Where a prediction of 0 is, and how much further one of 1."""
        return (self.moments.mean, self.moments.deviation) if self.standardise else (0.0, 1.0)

    def learn(self, number: float) -> float:
        """The number as the network learns it; taken in first, so that the very first one is at zero."""
        if abs(number) > LARGEST:  # its square would spoil the deviation; the learner's guards deal with it
            return math.copysign(math.inf, number)
        if not self.standardise or math.isnan(number):
            return number
        self.moments.take(number)
        return self.moments.standardised(number)

    def restored(self, prediction: float) -> float:
        """What a prediction means."""
        mean, scale = self.scale
        return mean + scale * prediction


def as_number(y: Any) -> float:
    """A target as a float; NaN for None, which is not learnt from."""
    if y is None:
        return math.nan
    if not isinstance(y, numbers.Real | np.bool_):
        raise TypeError(f"`y` must be a number, or None where there is none, got {arguments.shown(y)}")
    try:
        return float(y)
    except OverflowError:
        return math.inf
