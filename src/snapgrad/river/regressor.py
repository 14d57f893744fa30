"""A regressor with a recurrent memory."""

from __future__ import annotations

from typing import Any

from snapgrad.river.interface import SnapEstimator, base
from snapgrad.streams.models import Regression


class SnapRegressor(SnapEstimator, base.Regressor):
    """A recurrent network that learns a number from every sample of a stream once, by SnAp.

    Samples are a sequence: what came before counts. `learn_one` moves on in it, `predict_one` does not. A y of None or
    NaN is not learnt from.

    The arguments are those of `SnapEstimator`.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from snapgrad.river import SnapRegressor

    >>> model = SnapRegressor(units=16)
    >>> metric = evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE())

    """

    _make = Regression
    _model: Regression

    def predict_one(self, x: dict[base.typing.FeatureName, Any]) -> float:
        """The number that belongs to x; nothing changes."""
        return self._model.predict(x)

    def learn_one(self, x: dict[base.typing.FeatureName, Any], y: base.typing.RegTarget) -> None:
        """Reads x and learns from y."""
        self._model.learn(x, y)
