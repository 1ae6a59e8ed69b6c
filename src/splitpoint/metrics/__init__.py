"""How good a prediction was: functions of (prediction, target), or of two sets of scores for detection.

`METRICS` is the table of all that `evaluate`, benchmarks and reports show.
"""

from splitpoint.metrics.classification import (
    Reliability,
    accuracy,
    adaptive_ece,
    brier,
    classwise_ece,
    ece,
    ece_floor,
    nll,
    reliability,
    set_coverage,
    set_size,
)
from splitpoint.metrics.modalities import blamed, right_blame, spoilt_aurocs
from splitpoint.metrics.ranking import (
    RiskCoverage,
    Sparsification,
    aupr,
    aurc,
    auroc,
    ause,
    eaurc,
    fpr95,
    risk_coverage,
    sparsification,
    spearman,
)
from splitpoint.metrics.regression import (
    crps,
    mae,
    mpiw,
    picp,
    picp_down,
    picp_up,
    piece,
    piece_authors,
    piece_floor,
    piece_floor_minus,
    piece_floor_plus,
    piece_minus,
    piece_plus,
    pinball,
    rmse,
    spearman_epistemic,
    spearman_total,
    winkler,
)
from splitpoint.metrics.table import (
    LEVEL,
    METRICS,
    Evidence,
    Metric,
    measured,
    metric,
    on_targets,
    ordered,
    row_scores,
)

__all__ = [
    "LEVEL", "METRICS", "Evidence", "Metric", "Reliability", "RiskCoverage", "Sparsification", "accuracy",
    "adaptive_ece", "aupr", "aurc", "auroc", "ause", "blamed", "brier", "classwise_ece", "crps", "eaurc", "ece",
    "ece_floor", "fpr95", "mae", "measured", "metric", "mpiw", "nll", "on_targets", "ordered", "picp", "picp_down",
    "picp_up", "piece", "piece_authors", "piece_floor", "piece_floor_minus", "piece_floor_plus", "piece_minus",
    "piece_plus", "pinball", "reliability", "right_blame", "risk_coverage", "rmse", "row_scores", "set_coverage",
    "set_size", "sparsification", "spearman", "spearman_epistemic", "spearman_total", "spoilt_aurocs", "winkler",
]  # fmt: skip
