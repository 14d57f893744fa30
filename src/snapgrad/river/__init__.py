"""River's estimators around `sg.OnlineLearner`: a regressor, a classifier and a forecaster."""

from snapgrad.river.classifier import SnapClassifier
from snapgrad.river.forecaster import SnapForecaster
from snapgrad.river.regressor import SnapRegressor

__all__ = ["SnapClassifier", "SnapForecaster", "SnapRegressor"]
