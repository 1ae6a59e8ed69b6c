"""What is left of the error when the most uncertain rows are set aside: risk-coverage and sparsification curves.

Rows with equal scores leave together on average: a curve is the expectation over all orders of the ties. A NaN score
counts as the highest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from splitpoint.errors import SettingsError, ShapeError
from splitpoint.metrics.order import sorted_by
from splitpoint.prediction import RegressionPrediction, aligned

Score: TypeAlias = Literal["total", "epistemic", "aleatoric"]
Error: TypeAlias = Literal["mae", "rmse"]


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Mean loss `risk` (N,) of the ``k`` rows with the lowest scores, for `coverage` ``k / N`` from 1/N to 1."""

    coverage: Tensor
    risk: Tensor


@dataclass(frozen=True, eq=False)
class Sparsification:
    """Error of the rows that are kept, relative to the error of all of them.

    Attributes:
        removed: (N,) share of rows removed, ``0, 1/N, ..., (N - 1)/N``.
        error: (N,) error left when the rows with the highest scores are removed; 1 where none is.
        oracle: (N,) the same when those with the largest errors are removed, which no score can beat.
    """

    removed: Tensor
    error: Tensor
    oracle: Tensor


def risk_coverage(score: Tensor, loss: Tensor) -> RiskCoverage:
    """Risk-coverage curve: mean loss of the rows one answers when those with the highest scores are refused.

    Args:
        score: (N,) or any shape; high where the row should be refused.
        loss: of the same shape, such as 0 and 1 for right and wrong; rows with a NaN loss are left out.

    Source: El-Yaniv and Wiener (2010), On the foundations of noise-free selective classification.

    >>> risk_coverage(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([0.0, 1.0, 0.0])).risk
    tensor([0.0000, 0.0000, 0.3333], dtype=torch.float64)
    """
    if score.shape != loss.shape:
        raise ShapeError(
            f"Expected a score for every loss, but got {tuple(score.shape)} and {tuple(loss.shape)}; reshape them."
        )
    seen = ~loss.isnan()
    ordered = sorted_by(score[seen], loss[seen])
    kept = torch.arange(1, len(ordered) + 1, device=ordered.device)
    return RiskCoverage(kept / max(len(ordered), 1), ordered.cumsum(0) / kept)


def aurc(score: Tensor, loss: Tensor) -> float:
    """Area under the risk-coverage curve, ``mean_k risk_k``; smaller is better, NaN without rows."""
    return float(risk_coverage(score, loss).risk.mean())


def eaurc(score: Tensor, loss: Tensor) -> float:
    """Excess of `aurc` over that of the oracle, which ranks rows by the loss itself; 0 is a perfect ranking.

    Source: Geifman, Uziel and El-Yaniv (2019), Bias-reduced uncertainty estimation for deep neural classifiers.
    """
    return aurc(score, loss) - aurc(loss, loss)


def sparsification(
    prediction: RegressionPrediction, target: Tensor, score: Score = "total", error: Error = "mae"
) -> Sparsification:
    """Sparsification curve of a score and of the oracle, both divided by the error of all rows.

    Args:
        prediction: N entries in all, of any shape.
        target: of the shape of the mean; NaN does not count.
        score: which of the prediction's scores removes rows, highest first.
        error: mean absolute error or root mean squared error of the rows that are kept.

    Source: Ilg et al. (2018), Uncertainty estimates and multi-hypotheses networks for optical flow.
    """
    if score not in ("total", "epistemic", "aleatoric"):
        raise SettingsError(f"Expected score to be 'total', 'epistemic' or 'aleatoric', but got {score!r}.")
    if error not in ("mae", "rmse"):
        raise SettingsError(f"Expected error to be 'mae' or 'rmse', but got {error!r}.")
    size = (prediction.mean.double() - aligned(prediction.mean, target).double()).abs()
    loss = size.square() if error == "rmse" else size
    ours, best = (risk_coverage(by, loss).risk.flip(0) for by in (getattr(prediction, score), loss))
    if error == "rmse":
        ours, best = ours.sqrt(), best.sqrt()
    removed = torch.arange(len(ours), device=ours.device) / max(len(ours), 1)
    return Sparsification(removed, ours / ours[:1], best / ours[:1])


def ause(prediction: RegressionPrediction, target: Tensor, score: Score = "total", error: Error = "mae") -> float:
    """Area under the sparsification error, the mean of ``error - oracle`` over `sparsification`.

    0 is a ranking as good as the oracle's. NaN without targets, or where no prediction has an error.
    """
    curve = sparsification(prediction, target, score, error)
    return float((curve.error - curve.oracle).mean())
