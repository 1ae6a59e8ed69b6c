"""The figures of one trial of a regression experiment."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from splitpoint import metrics
from splitpoint.prediction import RegressionPrediction, aligned

IN_UNITS = ("rmse", "mpiw", "winkler", "crps")
"""Metrics that scale with the target."""


def measured(
    method: str, prediction: RegressionPrediction, target: Tensor, scale: float, *, authors: bool = False
) -> dict[str, float]:
    """All metrics by name, those with units in units of the target.

    Args:
        method: id of the method.
        prediction: in standard units.
        target: in standard units.
        scale: units of the target in one standard unit.
        authors: judge intervals and scores of ensembles as the published code does.
    """
    prediction = as_published(method, prediction) if authors else prediction
    target = aligned(prediction.mean, target)
    level = prediction.levels[-1]
    above = int((target > prediction.mean).sum())
    below = int((target < prediction.mean).sum())
    found = {
        "rmse": metrics.rmse(prediction, target),
        "winkler": metrics.winkler(prediction, target),
        "picp": metrics.picp(prediction, target),
        "mpiw": metrics.mpiw(prediction, target),
        "piece": metrics.piece(prediction, target),
        "piece_authors": metrics.piece_authors(prediction, target),
        "piece_plus": metrics.piece_plus(prediction, target),
        "piece_minus": metrics.piece_minus(prediction, target),
        "piece_floor_plus": metrics.piece_floor(above, level) if above else math.nan,
        "piece_floor_minus": metrics.piece_floor(below, level) if below else math.nan,
        "spearman_epistemic": metrics.spearman_epistemic(prediction, target),
        "spearman_total": metrics.spearman_total(prediction, target),
    }
    if prediction.scale is not None:
        found["crps"] = metrics.crps(prediction, target)
    return {name: scale * value if name in IN_UNITS else value for name, value in found.items()}


def as_published(method: str, prediction: RegressionPrediction) -> RegressionPrediction:
    """Ensembles as the published code reports them.

    The interval is ``mean -+ 2 sigma`` with the mean noise alone, the total score the sum of the two deviations.
    """
    if method not in ("mc_dropout", "deep_ensemble"):
        return prediction
    sigma = prediction.aleatoric.sqrt()
    half = 2 * sigma.unsqueeze(-1) * torch.ones_like(prediction.lowers)
    mean = prediction.mean.unsqueeze(-1)
    return replace(prediction, lowers=mean - half, uppers=mean + half, total=sigma + prediction.epistemic.sqrt())
