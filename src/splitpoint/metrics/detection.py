"""How well a score tells two groups of rows apart."""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.metrics.point import average_ranks


def auroc(negative: Tensor, positive: Tensor) -> float:
    """Probability that a score of the positive group exceeds one of the negative group, ties counting half (E40).

    Args:
        negative: scores of the group that should score low (correct, clean, in distribution).
        positive: scores of the group that should score high.

    >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    0.875
    """
    if not len(negative) or not len(positive):
        return float("nan")
    ranks = average_ranks(torch.cat([negative.flatten(), positive.flatten()]).double())
    count = positive.numel()
    surplus = ranks[negative.numel() :].sum() - count * (count + 1) / 2
    return float(surplus / (count * negative.numel()))
