"""A classifier with a recurrent memory."""

from __future__ import annotations

from typing import Any

from snapgrad.river.interface import SnapEstimator, base
from snapgrad.streams.models import Classification


class SnapClassifier(SnapEstimator, base.Classifier):
    """A recurrent network that learns labels from every sample of a stream once, by SnAp.

    Samples are a sequence: what came before counts. `learn_one` moves on in it, `predict_one` and `predict_proba_one`
    do not. Labels may appear at any time; there is room for four at first, and twice as many whenever it is full, for
    which the step is compiled anew. A y of None or NaN is not learnt from.

    The arguments are those of `SnapEstimator`.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from snapgrad.river import SnapClassifier

    >>> model = SnapClassifier(units=16)
    >>> metric = evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())

    """

    _make = Classification
    _model: Classification

    @property
    def _multiclass(self) -> bool:
        return True

    def predict_proba_one(
        self, x: dict[base.typing.FeatureName, Any], **kwargs: Any
    ) -> dict[base.typing.ClfTarget, float]:
        """The probability of each label seen so far; nothing changes."""
        return self._model.predict(x)

    def learn_one(self, x: dict[base.typing.FeatureName, Any], y: base.typing.ClfTarget) -> None:
        """Reads x and learns from y."""
        self._model.learn(x, y)
