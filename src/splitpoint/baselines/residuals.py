"""Intervals of constant width from the quantiles of residuals, for methods that say nothing about noise."""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.baselines.answers import Levels, RegressionAnswer
from splitpoint.cache import Table
from splitpoint.calibration import quantiles


def residual_quantiles(table: Table, levels: Levels) -> Tensor:
    """Lower and upper residual quantiles (D, 2, L) at the central levels, NaN residuals left out."""
    residual = table.column("residual").double()
    tails = torch.tensor([[(1 - level) / 2 for level in levels], [(1 + level) / 2 for level in levels]]).double()
    found = [
        quantiles(own[~own.isnan()].sort().values[None], tails.double().flatten()).reshape(tails.shape)
        for own in residual.T
    ]
    return torch.stack(found).float()


def constant_answer(output: Tensor, quantiles: Tensor, levels: Levels, epistemic: Tensor) -> RegressionAnswer:
    """Outputs (N, D, ...) with bounds at constant distances (D, 2, L)."""
    wide = quantiles.reshape(len(quantiles), *[1] * (output.dim() - 2), 2, len(levels)).to(output)
    lowers = output.unsqueeze(-1) + wide[..., 0, :].clamp(max=0)
    uppers = output.unsqueeze(-1) + wide[..., 1, :].clamp(min=0)
    width = uppers[..., -1] - lowers[..., -1]
    return RegressionAnswer(
        levels=levels,
        mean=output,
        lowers=lowers,
        uppers=uppers,
        aleatoric=width,
        epistemic=epistemic,
        total=width + epistemic,
    )
