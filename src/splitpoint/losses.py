"""Losses of the heads: coverage-aware quantile loss, pinball loss, masked mean squared error.

All take a row axis `dim` to average over and a boolean `mask` of the rows that count, so that one call serves a
stack of independent heads: the result keeps every other axis. A mask without a row gives loss 0 and gradient 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

CoverageForm = Literal["authors", "paper"]


def _mean(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Mean over the rows of `mask` of values that are 0 in all other rows; 0 where no row is left."""
    count = mask.sum(dim).clamp(min=1)
    return (values.sum(dim) / count).clamp(max=torch.finfo(values.dtype).max)


def masked_mse(prediction: Tensor, target: Tensor, mask: Tensor, dim: int = 0) -> Tensor:
    """``mean (z - |r|)^2`` over the rows of `mask` (E17)."""
    error = torch.where(mask, prediction - target, 0.0)
    return _mean(error * error, mask.expand_as(error), dim)


def pinball_errors(error: Tensor, level: Tensor | float) -> Tensor:
    """``max(level e, (level - 1) e)`` of every error ``e = target - predicted level-quantile``."""
    return error * (level - (error < 0).to(error.dtype))


def pinball_loss(size: Tensor, bound: Tensor, level: Tensor, mask: Tensor, dim: int = 0) -> Tensor:
    """Pinball loss ``mean max(level e, (level - 1) e)``, ``e = size - bound``, of a predicted `level`-quantile.

    >>> size, rows = torch.tensor([1.0, 3.0]), torch.tensor([True, True])
    >>> pinball_loss(size, torch.tensor([2.0, 2.0]), torch.tensor(0.9), rows)
    tensor(0.5000)
    """
    error = torch.where(mask, size - bound, 0.0)
    return _mean(pinball_errors(error, level), mask.expand_as(error), dim)


def coverage_loss(
    size: Tensor, bound: Tensor, level: Tensor, mask: Tensor, dim: int = 0, form: CoverageForm = "authors"
) -> Tensor:
    """Coverage-aware quantile loss: pull `bound` up while it covers too little, down while it covers too much.

    With ``p`` the share of rows where ``size <= bound``:

    - ``form="paper"`` (E19): ``mean_i (size_i - bound_i)+`` over all rows if ``p < level``, and
      ``mean_i (bound_i - size_i)+`` if ``p > level``;
    - ``form="authors"``: the mean runs over the violating rows only and is multiplied by ``|level - p|``. This is
      what the published code does and what reproduces the published tables; the printed form under-covers.

    Args:
        size: residual sizes ``|r|``, any shape.
        bound: predicted quantiles, broadcastable with `size`.
        level: target coverage in (0, 1), broadcastable with `size` without its axis `dim`.
        mask: rows that count, broadcastable with `size`.
        dim: row axis, averaged away.
        form: which of the two published forms.
    """
    error = torch.where(mask, size - bound, 0.0)
    mask = mask.expand_as(error)
    covered = mask & (error <= 0)
    lacking = level - covered.sum(dim).to(error.dtype) / mask.sum(dim).clamp(min=1)
    violation = (error * lacking.sign().unsqueeze(dim)).clamp(min=0)
    if form == "paper":
        return _mean(violation, mask, dim)
    return lacking.abs() * _mean(violation, violation > 0, dim)
