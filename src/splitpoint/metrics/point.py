"""Quality of the point prediction, and how a score ranks its errors. NaN targets do not count."""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.prediction import RegressionPrediction


def _errors(prediction: RegressionPrediction, target: Tensor) -> Tensor:
    error = prediction.mean - target.reshape(prediction.mean.shape)
    return error[~error.isnan()]


def rmse(prediction: RegressionPrediction, target: Tensor) -> float:
    """Root mean squared error of the mean."""
    return float(_errors(prediction, target).square().mean().sqrt())


def mae(prediction: RegressionPrediction, target: Tensor) -> float:
    """Mean absolute error of the mean."""
    return float(_errors(prediction, target).abs().mean())


def average_ranks(values: Tensor) -> Tensor:
    """Ranks from 1, ties sharing their average.

    >>> average_ranks(torch.tensor([10.0, 20.0, 10.0]))
    tensor([1.5000, 3.0000, 1.5000], dtype=torch.float64)
    """
    _, group, count = torch.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2.0)[group]


def spearman(score: Tensor, other: Tensor) -> float:
    """Spearman's rank correlation of two flat samples, ties averaged; NaN when one of them is constant."""
    ranks = torch.stack([average_ranks(score.flatten()), average_ranks(other.flatten())])
    return float(torch.corrcoef(ranks)[0, 1])
