"""River's estimators around `sg.OnlineLearner`: a regressor, a classifier and a forecaster.

    from snapgrad.river import SnapRegressor

    model = SnapRegressor(cell="lstm", units=64)
    evaluate.progressive_val_score(dataset, model, metrics.MAE())
"""

from snapgrad.river.classifier import SnapClassifier
from snapgrad.river.forecaster import SnapForecaster
from snapgrad.river.regressor import SnapRegressor

__all__ = ["SnapClassifier", "SnapForecaster", "SnapRegressor"]
