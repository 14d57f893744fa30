"""A forecaster with a recurrent memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from snapgrad import arguments
from snapgrad.river.interface import Forecaster, SnapEstimator
from snapgrad.streams.models import Forecast


class SnapForecaster(SnapEstimator, Forecaster):
    """A recurrent network that learns a series, every value once, by SnAp, and forecasts it.

    It predicts one step ahead from the value before and the features of now. Further ahead, every prediction is read as
    the next value. A y of None or NaN is not learnt from; the prediction stands in for it.

    The arguments are those of `SnapEstimator`.

    Examples
    --------
    >>> from snapgrad.river import SnapForecaster

    >>> model = SnapForecaster(units=16)
    >>> for t in range(100):
    ...     model.learn_one(t % 7)
    >>> len(model.forecast(horizon=3))
    3

    """

    _make = Forecast
    _model: Forecast

    def learn_one(self, y: float, x: dict[Any, Any] | None = None) -> None:
        """Moves on to the next value and learns from it."""
        self._model.learn(y, x)

    def forecast(self, horizon: int, xs: Sequence[dict[Any, Any]] | None = None) -> list[float]:
        """The next `horizon` values; `xs` are their features. Nothing changes."""
        arguments.positive_integer("horizon", horizon)
        if xs is not None and len(xs) != horizon:
            raise ValueError(f"`xs` must have as many samples as `horizon`, {horizon}, got {len(xs)}")
        return self._model.predict(horizon, xs)
