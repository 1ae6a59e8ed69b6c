"""What turns scores into promises: conformal factors, and the in-distribution reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from splitpoint.errors import DataError, SettingsError
from splitpoint.prediction import Reference, channel_order

GRID = 1001


def conformal_factor(ratio: Tensor, level: float, counted: str = "residuals on each side") -> Tensor:
    """Smallest factor that covers a share `level` of fresh rows: the ``ceil((n + 1) level)``-th smallest ratio.

    Args:
        ratio: (n,) residual size over predicted half-width on calibration rows of one side.
        level: share of that side to cover, in (0, 1).
        counted: what the ratios are, for the message when there are too few.

    For exchangeable rows, ``P(size <= factor * half-width) >= level`` (split conformal prediction).
    """
    rank = math.ceil((len(ratio) + 1) * level - 1e-9)
    if rank > len(ratio):
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise DataError(
            f"Expected at least {needed} calibration {counted} for conformal prediction at level {level}, "
            f"but got {len(ratio)}; give more calibration data, a lower level or another method."
        )
    return ratio.kthvalue(rank).values


def reference(scores: Sequence[Tensor], shape: tuple[int, ...], quantile: float) -> Reference:
    """In-distribution reference of epistemic scores; later scores above the `quantile` will be flagged.

    Args:
        scores: (N, ...) scores of in-distribution rows, batch by batch.
        shape: channel shape, see `Reference`.
        quantile: share of in-distribution scores that stay unflagged.
    """
    if not 0 < quantile < 1:
        raise SettingsError(f"Expected a quantile in (0, 1), but got {quantile}.")
    channels = math.prod(shape)
    flat = [score.permute(channel_order(shape, score.dim())).reshape(channels, -1) for score in scores]
    ordered = torch.cat(flat, 1).sort(1).values
    if not torch.isfinite(ordered).all():
        raise DataError("Expected finite epistemic scores to set the threshold on, but got NaN or inf; check the data.")
    grid = torch.linspace(0, 1, GRID, dtype=torch.float64)
    threshold = quantiles(ordered, torch.tensor([quantile], dtype=torch.float64))
    return Reference(quantiles(ordered, grid).reshape(*shape, GRID), threshold.reshape(shape))


def quantiles(ordered: Tensor, shares: Tensor) -> Tensor:
    """Linear-interpolation quantiles of sorted rows; unlike torch.quantile without a limit on their length."""
    position = shares * (ordered.shape[1] - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=ordered.shape[1] - 1)
    part = (position - low).to(ordered.dtype)
    return torch.lerp(ordered[:, low], ordered[:, high], part.expand(len(ordered), -1))
