"""What the order of scores is worth: rank correlation, telling two groups apart, and setting uncertain rows aside.

Rows with equal scores are treated alike: every figure is that of average ranks, or the expectation over all orders of
the ties. A NaN score counts as the highest, except in `spearman`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from splitpoint.errors import SettingsError, ShapeError
from splitpoint.metrics.given import Given, beside, predicted, whole_number
from splitpoint.prediction import RegressionPrediction, aligned
from splitpoint.settings import shown
from splitpoint.tensors import numbers

Score: TypeAlias = Literal["total", "epistemic", "aleatoric", "support"]
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


# Order


def average_ranks(values: Given) -> Tensor:
    """Ranks from 1, ties sharing their average.

    >>> average_ranks(torch.tensor([10.0, 20.0, 10.0]))
    tensor([1.5000, 3.0000, 1.5000], dtype=torch.float64)
    """
    _, group, count = torch.unique(numbers(values, "values").flatten(), return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    ranks: Tensor = (last - (count - 1) / 2.0)[group]
    return ranks


def comparable(score: Given) -> Tensor:
    """The score flat and in float64, NaN as infinity: what is not a number deserves no trust, as in `flagged`."""
    flat = numbers(score, "scores").flatten().double()
    return torch.where(flat.isnan(), torch.inf, flat)


def sorted_by(score: Tensor, value: Tensor) -> Tensor:
    """Values in float64 by ascending score, each replaced by the mean of those with the same score.

    That is the expectation over all orders of the ties, so that the order of the rows does not matter.

    >>> sorted_by(torch.tensor([2.0, 1.0, 1.0]), torch.tensor([5.0, 0.0, 1.0]))
    tensor([0.5000, 0.5000, 5.0000], dtype=torch.float64)
    """
    _, group, count = torch.unique(comparable(score), return_inverse=True, return_counts=True)
    flat = value.flatten().double()
    mean = flat.new_zeros(len(count)).index_add_(0, group, flat) / count
    ordered: Tensor = mean.repeat_interleave(count)
    return ordered


def check_bins(bins: int) -> None:
    """A SettingsError unless there is a bin."""
    whole_number(bins, "bins", 1)


def equal_parts(rows: int, parts: int, device: torch.device) -> Tensor:
    """Number of the part that each of the sorted rows belongs to, (rows,); sizes differ by at most one.

    >>> equal_parts(5, 2, torch.device("cpu"))
    tensor([0, 0, 0, 1, 1])
    """
    return torch.div(torch.arange(rows, device=device) * parts, max(rows, 1), rounding_mode="floor")


def spearman(score: Given, other: Given) -> float:
    """Spearman's rank correlation of two samples, ties averaged, rows with a NaN left out.

    NaN when fewer than two rows are left or one sample is constant.
    """
    first = numbers(score, "scores").flatten().double()
    second = beside(first, other, "the other sample").flatten().double()
    if len(first) != len(second):
        raise ShapeError(
            f"Expected two samples of one size, but got {len(first)} and {len(second)} numbers; pair them row by row."
        )
    pair = torch.stack([first, second])
    pair = pair[:, ~pair.isnan().any(0)]
    if pair.shape[1] < 2:
        return float("nan")
    return float(torch.corrcoef(torch.stack([average_ranks(pair[0]), average_ranks(pair[1])]))[0, 1])


# Two groups of rows: `negative` are scores of the group that should score low (correct, clean, in distribution),
# `positive` those of the group that should score high, each of any shape. Without one of them the answer is NaN.


def auroc(negative: Given, positive: Given) -> float:
    """Probability that a score of the positive group exceeds one of the negative group, ties counting half (E40).

    >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    0.875
    """
    low, high = _two(negative, positive)
    if not len(low) or not len(high):
        return math.nan
    ranks = average_ranks(torch.cat([low, high]))
    count = len(high)
    surplus = ranks[len(low) :].sum() - count * (count + 1) / 2
    return float(surplus / (count * len(low)))


def aupr(negative: Given, positive: Given) -> float:
    """Average precision ``sum_t (recall_t - recall_{t-1}) precision_t`` over thresholds ``t``, highest first.

    Equal scores pass a threshold together. A score without information has the share of positives, not 1/2.

    >>> round(aupr(torch.tensor([0.1, 0.8]), torch.tensor([0.7, 0.9])), 4)
    0.8333
    """
    low, high = _two(negative, positive)
    if not len(low) or not len(high):
        return math.nan
    false, true = _passing(low, high)
    recall = true / len(high)
    gained = torch.diff(recall, prepend=recall.new_zeros(1))
    return float((gained * true / (true + false)).sum())


def fpr95(negative: Given, positive: Given) -> float:
    """Share of negatives at or above the highest threshold that at least 95% of the positives reach.

    Scores equal to the threshold are at it, so that ties count against the score; 0 is perfect.

    >>> fpr95(torch.tensor([0.1, 0.2, 0.8, 0.3]), torch.tensor([0.7, 0.9]))
    0.25
    """
    low, high = _two(negative, positive)
    if not len(low) or not len(high):
        return math.nan
    false, true = _passing(low, high)
    enough = true / len(high) >= 0.95
    return float(false[enough][0] / len(low))


def _two(negative: Given, positive: Given) -> tuple[Tensor, Tensor]:
    """Scores of both groups, comparable, on one device."""
    low = comparable(negative)
    return low, comparable(beside(low, positive, "scores of the positive group"))


def _passing(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Number of negatives and of positives at or above every distinct score, highest score first, in float64."""
    values, group = torch.unique(torch.cat([low, high]), return_inverse=True)
    parts = (group[: len(low)], group[len(low) :])
    false, true = (torch.bincount(part, minlength=len(values)).flip(0).cumsum(0).double() for part in parts)
    return false, true


# Rows set aside


def risk_coverage(score: Given, loss: Given) -> RiskCoverage:
    """Risk-coverage curve: mean loss of the rows one answers when those with the highest scores are refused.

    Args:
        score: (N,) or any shape; high where the row should be refused.
        loss: of the same shape, such as 0 and 1 for right and wrong; rows with a NaN loss are left out.

    Source: El-Yaniv and Wiener (2010), On the foundations of noise-free selective classification.

    >>> risk_coverage(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([0.0, 1.0, 0.0])).risk
    tensor([0.0000, 0.0000, 0.3333], dtype=torch.float64)
    """
    score = numbers(score, "scores")
    loss = beside(score, loss, "losses")
    if score.shape != loss.shape:
        raise ShapeError(
            f"Expected a score for every loss, but got {tuple(score.shape)} and {tuple(loss.shape)}; reshape them."
        )
    seen = ~loss.isnan()
    ordered = sorted_by(score[seen], loss[seen])
    kept = torch.arange(1, len(ordered) + 1, device=ordered.device)
    return RiskCoverage(kept / max(len(ordered), 1), ordered.cumsum(0) / kept)


def aurc(score: Given, loss: Given) -> float:
    """Area under the risk-coverage curve, ``mean_k risk_k``; smaller is better, NaN without rows."""
    return float(risk_coverage(score, loss).risk.mean())


def eaurc(score: Given, loss: Given) -> float:
    """Excess of `aurc` over that of the oracle, which ranks rows by the loss itself; 0 is a perfect ranking.

    Source: Geifman, Uziel and El-Yaniv (2019), Bias-reduced uncertainty estimation for deep neural classifiers.
    """
    return aurc(score, loss) - aurc(loss, loss)


def sparsification(
    prediction: RegressionPrediction, target: Given, score: Score = "total", error: Error = "mae"
) -> Sparsification:
    """Sparsification curve of a score and of the oracle, both divided by the error of all rows.

    Args:
        prediction: N entries in all, of any shape.
        target: of the shape of the mean; NaN does not count.
        score: which of the prediction's scores removes rows, highest first.
        error: mean absolute error or root mean squared error of the rows that are kept.

    Source: Ilg et al. (2018), Uncertainty estimates and multi-hypotheses networks for optical flow.
    """
    if not isinstance(score, str) or score not in get_args(Score):
        raise SettingsError(f"Expected score to be one of {get_args(Score)}, but got {shown(score)}.")
    if not isinstance(error, str) or error not in ("mae", "rmse"):
        raise SettingsError(f"Expected error to be 'mae' or 'rmse', but got {shown(error)}.")
    mean = predicted(prediction, RegressionPrediction).mean
    size = (mean.double() - aligned(mean, beside(mean, target, "targets")).double()).abs()
    loss = size.square() if error == "rmse" else size
    ours, best = (risk_coverage(by, loss).risk.flip(0) for by in (getattr(prediction, score), loss))
    if error == "rmse":
        ours, best = ours.sqrt(), best.sqrt()
    removed = torch.arange(len(ours), device=ours.device) / max(len(ours), 1)
    return Sparsification(removed, ours / ours[:1], best / ours[:1])


def ause(prediction: RegressionPrediction, target: Given, score: Score = "total", error: Error = "mae") -> float:
    """Area under the sparsification error, the mean of ``error - oracle`` over `sparsification`.

    0 is a ranking as good as the oracle's. NaN without targets, or where no prediction has an error.
    """
    curve = sparsification(prediction, target, score, error)
    return float((curve.error - curve.oracle).mean())
