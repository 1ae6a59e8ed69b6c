"""Quality of the point prediction, and how a score ranks its errors. NaN targets do not count."""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.metrics.order import average_ranks
from splitpoint.prediction import RegressionPrediction, aligned


def _errors(prediction: RegressionPrediction, target: Tensor) -> Tensor:
    """Signed errors of the mean in float64, in its shape; NaN where there is no target."""
    return prediction.mean.double() - aligned(prediction.mean, target).double()


def _observed_errors(prediction: RegressionPrediction, target: Tensor) -> Tensor:
    return _errors(prediction, target)[~aligned(prediction.mean, target).isnan()]


def rmse(prediction: RegressionPrediction, target: Tensor) -> float:
    """Root mean squared error of the mean (E34)."""
    return float(_observed_errors(prediction, target).square().mean().sqrt())


def mae(prediction: RegressionPrediction, target: Tensor) -> float:
    """Mean absolute error of the mean."""
    return float(_observed_errors(prediction, target).abs().mean())


def spearman(score: Tensor, other: Tensor) -> float:
    """Spearman's rank correlation of two samples, ties averaged, rows with a NaN left out.

    NaN when fewer than two rows are left or one sample is constant.
    """
    pair = torch.stack([score.flatten().double(), other.flatten().double()])
    pair = pair[:, ~pair.isnan().any(0)]
    if pair.shape[1] < 2:
        return float("nan")
    return float(torch.corrcoef(torch.stack([average_ranks(pair[0]), average_ranks(pair[1])]))[0, 1])


def spearman_epistemic(prediction: RegressionPrediction, target: Tensor) -> float:
    """Rank correlation of ``|mean - y|`` with the epistemic score (E39, as the paper defines it)."""
    return spearman(prediction.epistemic, _errors(prediction, target).abs())


def spearman_total(prediction: RegressionPrediction, target: Tensor) -> float:
    """Rank correlation of ``|mean - y|`` with the total score (E39, as the authors' code computes it)."""
    return spearman(prediction.total, _errors(prediction, target).abs())
