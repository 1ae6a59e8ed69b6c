"""Sorting by a score without favour among ties, which every ranking metric needs."""

from __future__ import annotations

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:
    """Ranks from 1, ties sharing their average.

    >>> average_ranks(torch.tensor([10.0, 20.0, 10.0]))
    tensor([1.5000, 3.0000, 1.5000], dtype=torch.float64)
    """
    _, group, count = torch.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    ranks: Tensor = (last - (count - 1) / 2.0)[group]
    return ranks


def comparable(score: Tensor) -> Tensor:
    """The score flat and in float64, NaN as infinity: what is not a number deserves no trust, as in `flagged`."""
    flat = score.flatten().double()
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


def equal_parts(rows: int, parts: int, device: torch.device) -> Tensor:
    """Number of the part that each of the sorted rows belongs to, (rows,); sizes differ by at most one.

    >>> equal_parts(5, 2, torch.device("cpu"))
    tensor([0, 0, 0, 1, 1])
    """
    return torch.div(torch.arange(rows, device=device) * parts, max(rows, 1), rounding_mode="floor")
