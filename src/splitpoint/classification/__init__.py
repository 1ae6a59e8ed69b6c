"""Split-point uncertainty for classifiers: calibrated probabilities and the self-consistency score."""

from splitpoint.classification.method import SplitPointClassifier
from splitpoint.classification.predictor import ClassificationPredictor

__all__ = ["ClassificationPredictor", "SplitPointClassifier"]
