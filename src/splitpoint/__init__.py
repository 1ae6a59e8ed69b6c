"""Post-hoc split-point uncertainty for trained PyTorch models.

Attach it after training and leave the network untouched: one forward pass then returns the prediction, an
asymmetric interval or calibrated class probabilities, and a score that rises where the model should not be trusted.
"""

from splitpoint import attacks, baselines, consistency, losses, metrics
from splitpoint.agreement import Agreement, AgreementPrediction, AgreementPredictor
from splitpoint.checks import Check
from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
from splitpoint.errors import (
    CacheError,
    DataError,
    LayerError,
    SettingsError,
    ShapeError,
    SplitPointError,
    SplitPointWarning,
    StorageError,
    TrainingError,
)
from splitpoint.evaluation import evaluate
from splitpoint.inspection import layers
from splitpoint.prediction import ClassificationPrediction, RegressionPrediction
from splitpoint.recording import Recording
from splitpoint.regression import RegressionPredictor, SplitPointRegressor
from splitpoint.storage import load
from splitpoint.tasks import Classification, Regression
from splitpoint.verdict import Verdict, verdict

__version__ = "0.1.0"

__all__ = [
    "Agreement",
    "AgreementPrediction",
    "AgreementPredictor",
    "CacheError",
    "Check",
    "Classification",
    "ClassificationPrediction",
    "ClassificationPredictor",
    "DataError",
    "LayerError",
    "Recording",
    "Regression",
    "RegressionPrediction",
    "RegressionPredictor",
    "SettingsError",
    "ShapeError",
    "SplitPointClassifier",
    "SplitPointError",
    "SplitPointRegressor",
    "SplitPointWarning",
    "StorageError",
    "TrainingError",
    "Verdict",
    "__version__",
    "attacks",
    "baselines",
    "consistency",
    "evaluate",
    "layers",
    "load",
    "losses",
    "metrics",
    "verdict",
]
