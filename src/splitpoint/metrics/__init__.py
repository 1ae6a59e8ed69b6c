"""How good a prediction was: functions of (prediction, target), or of two sets of scores for detection."""

from splitpoint.metrics.calibration import Reliability, adaptive_ece, classwise_ece, ece, ece_floor, reliability
from splitpoint.metrics.detection import aupr, auroc, fpr95
from splitpoint.metrics.distributions import crps
from splitpoint.metrics.intervals import (
    mpiw,
    picp,
    picp_down,
    picp_up,
    piece,
    piece_authors,
    piece_floor,
    piece_minus,
    piece_plus,
    pinball,
    winkler,
)
from splitpoint.metrics.point import mae, rmse, spearman, spearman_epistemic, spearman_total
from splitpoint.metrics.probabilities import accuracy, brier, nll
from splitpoint.metrics.rejection import (
    RiskCoverage,
    Sparsification,
    aurc,
    ause,
    eaurc,
    risk_coverage,
    sparsification,
)
from splitpoint.metrics.sets import set_coverage, set_size

__all__ = [
    "Reliability",
    "RiskCoverage",
    "Sparsification",
    "accuracy",
    "adaptive_ece",
    "aupr",
    "aurc",
    "auroc",
    "ause",
    "brier",
    "classwise_ece",
    "crps",
    "eaurc",
    "ece",
    "ece_floor",
    "fpr95",
    "mae",
    "mpiw",
    "nll",
    "picp",
    "picp_down",
    "picp_up",
    "piece",
    "piece_authors",
    "piece_floor",
    "piece_minus",
    "piece_plus",
    "pinball",
    "reliability",
    "risk_coverage",
    "rmse",
    "set_coverage",
    "set_size",
    "sparsification",
    "spearman",
    "spearman_epistemic",
    "spearman_total",
    "winkler",
]
