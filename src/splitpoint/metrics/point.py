"""Quality of the point prediction, and how a score ranks its errors. NaN targets do not count."""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.prediction import RegressionPrediction, aligned


def _errors(prediction: RegressionPrediction, target: Tensor) -> Tensor:
    target = aligned(prediction.mean, target)
    return (prediction.mean - target)[~target.isnan()]


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
    ranks: Tensor = (last - (count - 1) / 2.0)[group]
    return ranks


def spearman(score: Tensor, other: Tensor) -> float:
    """Spearman's rank correlation of two samples, ties averaged, rows with a NaN left out.

    NaN when fewer than two rows are left or one sample is constant.
    """
    pair = torch.stack([score.flatten().double(), other.flatten().double()])
    pair = pair[:, ~pair.isnan().any(0)]
    if pair.shape[1] < 2:
        return float("nan")
    return float(torch.corrcoef(torch.stack([average_ranks(pair[0]), average_ranks(pair[1])]))[0, 1])
