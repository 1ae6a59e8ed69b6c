"""Post-hoc split-point uncertainty for trained PyTorch models.

Attach it after training and leave the network untouched: one forward pass then returns the prediction, an
asymmetric interval or calibrated class probabilities, and a score that rises where the model should not be trusted.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from splitpoint import attacks, baselines, consistency, export, losses, metrics, runtime
    from splitpoint.agreement import Agreement, AgreementPrediction, AgreementPredictor
    from splitpoint.checks import Check
    from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
    from splitpoint.errors import (
        CacheError,
        DataError,
        ExportError,
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
    "ExportError",
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
    "__version__",
    "attacks",
    "baselines",
    "consistency",
    "evaluate",
    "export",
    "layers",
    "load",
    "losses",
    "metrics",
    "runtime",
]

_NAMES = {
    "agreement": (
        "Agreement",
        "AgreementPrediction",
        "AgreementPredictor",
    ),
    "checks": ("Check",),
    "classification": (
        "ClassificationPredictor",
        "SplitPointClassifier",
    ),
    "errors": (
        "CacheError",
        "DataError",
        "ExportError",
        "LayerError",
        "SettingsError",
        "ShapeError",
        "SplitPointError",
        "SplitPointWarning",
        "StorageError",
        "TrainingError",
    ),
    "evaluation": ("evaluate",),
    "inspection": ("layers",),
    "prediction": (
        "ClassificationPrediction",
        "RegressionPrediction",
    ),
    "recording": ("Recording",),
    "regression": (
        "RegressionPredictor",
        "SplitPointRegressor",
    ),
    "storage": ("load",),
    "tasks": (
        "Classification",
        "Regression",
    ),
}
"""Public names by the module that they come from; the others are modules themselves."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `splitpoint.runtime` does without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module 'splitpoint' has no attribute '{name}'")
    home = _HOMES.get(name)
    module = importlib.import_module(f"splitpoint.{home or name}")
    found = module if home is None else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
