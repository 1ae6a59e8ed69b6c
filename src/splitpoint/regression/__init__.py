"""Split-point uncertainty for regression networks: asymmetric intervals and the self-consistency score."""

from splitpoint.regression.method import SplitPointRegressor
from splitpoint.regression.predictor import RegressionPredictor

__all__ = ["RegressionPredictor", "SplitPointRegressor"]
