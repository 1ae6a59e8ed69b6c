"""How well a score tells two groups of rows apart.

`negative` are scores of the group that should score low (correct, clean, in distribution), `positive` those of the
group that should score high, each of any shape. Only the order of the scores matters; NaN counts as the highest.
Without one of the groups the answer is NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splitpoint.metrics.order import average_ranks, comparable


def auroc(negative: Tensor, positive: Tensor) -> float:
    """Probability that a score of the positive group exceeds one of the negative group, ties counting half (E40).

    >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    0.875
    """
    if not negative.numel() or not positive.numel():
        return math.nan
    ranks = average_ranks(torch.cat([comparable(negative), comparable(positive)]))
    count = positive.numel()
    surplus = ranks[negative.numel() :].sum() - count * (count + 1) / 2
    return float(surplus / (count * negative.numel()))


def aupr(negative: Tensor, positive: Tensor) -> float:
    """Average precision ``sum_t (recall_t - recall_{t-1}) precision_t`` over thresholds ``t``, highest first.

    Equal scores pass a threshold together. A score without information has the share of positives, not 1/2.

    >>> round(aupr(torch.tensor([0.1, 0.8]), torch.tensor([0.7, 0.9])), 4)
    0.8333
    """
    if not negative.numel() or not positive.numel():
        return math.nan
    false, true = _passing(negative, positive)
    recall = true / positive.numel()
    gained = torch.diff(recall, prepend=recall.new_zeros(1))
    return float((gained * true / (true + false)).sum())


def fpr95(negative: Tensor, positive: Tensor) -> float:
    """Share of negatives at or above the highest threshold that at least 95% of the positives reach.

    Scores equal to the threshold are at it, so that ties count against the score; 0 is perfect.

    >>> fpr95(torch.tensor([0.1, 0.2, 0.8, 0.3]), torch.tensor([0.7, 0.9]))
    0.25
    """
    if not negative.numel() or not positive.numel():
        return math.nan
    false, true = _passing(negative, positive)
    enough = true / positive.numel() >= 0.95
    return float(false[enough][0] / negative.numel())


def _passing(negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Number of negatives and of positives at or above every distinct score, highest score first, in float64."""
    low, high = comparable(negative), comparable(positive)
    values, group = torch.unique(torch.cat([low, high]), return_inverse=True)
    parts = (group[: len(low)], group[len(low) :])
    false, true = (torch.bincount(part, minlength=len(values)).flip(0).cumsum(0).double() for part in parts)
    return false, true
