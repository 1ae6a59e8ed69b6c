"""How good a prediction was: functions of (prediction, target), or of two sets of scores for detection."""

from splitpoint.metrics.detection import auroc
from splitpoint.metrics.intervals import mpiw, picp, picp_down, picp_up, piece_minus, piece_plus, winkler
from splitpoint.metrics.point import mae, rmse, spearman
from splitpoint.metrics.probabilities import accuracy, brier, ece, nll

__all__ = [
    "accuracy",
    "auroc",
    "brier",
    "ece",
    "mae",
    "mpiw",
    "nll",
    "picp",
    "picp_down",
    "picp_up",
    "piece_minus",
    "piece_plus",
    "rmse",
    "spearman",
    "winkler",
]
