"""What turns raw head outputs into promises: leave-one-out residuals, conformal factors, the in-distribution reference."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.errors import DataError, SettingsError
from splitpoint.prediction import Reference, channel_order

LARGEST_LEVERAGE = 0.9
WIDEST_GRAM = 4096
GRID = 1001


def moments(table: Table) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C,) of the features, in one pass; a constant feature has deviation 1."""
    count, mean, scatter = 0, torch.zeros(()), torch.zeros(())
    for window in table.slices():
        features = window["features"].double()
        rows = len(features)
        if not rows:
            continue
        here = features.mean(0)
        shift = here - mean
        total = count + rows
        scatter = scatter + (features - here).square().sum(0) + shift.square() * count * rows / total
        mean, count = mean + shift * rows / total, total
    spread = (scatter / max(count, 1)).sqrt()
    constant = spread <= 1e-7 * (1 + mean.abs())
    return mean.float(), torch.where(constant, 1.0, spread).float()


def leverage(table: Table, ridge: float = 1e-3) -> Tensor:
    """Leverage (rows,) of every row in a linear regression on its features and a constant.

    ``1/n + h' (H'H + ridge n I)^-1 h`` for standardised features, with one Cholesky factor of their Gram matrix.
    For a model whose last layer is linear, the residual of a row left out is ``r / (1 - leverage)``. Values are
    clamped to 0.9. Features wider than 4096 are sketched down to that by a fixed random projection, which can only
    lower the leverage.
    """
    center, spread = moments(table)
    width = len(center)
    sketch = None
    if width > WIDEST_GRAM:
        generator = torch.Generator().manual_seed(0)
        sketch = torch.randn(width, WIDEST_GRAM, generator=generator) / math.sqrt(WIDEST_GRAM)

    def standardised(window: dict[str, Tensor]) -> Tensor:
        features = (window["features"] - center) / spread
        return (features if sketch is None else features @ sketch).double()

    gram = torch.zeros((), dtype=torch.float64)
    for window in table.slices():
        h = standardised(window)
        gram = gram + h.T @ h
    eye = torch.eye(len(gram), dtype=torch.float64)
    factor = torch.linalg.cholesky(gram + ridge * table.rows * eye)
    parts = []
    for window in table.slices():
        solved = torch.linalg.solve_triangular(factor, standardised(window).T, upper=False)
        parts.append(solved.square().sum(0) + 1 / table.rows)
    return torch.cat(parts).clamp(max=LARGEST_LEVERAGE).float()


def conformal_factor(ratio: Tensor, level: float) -> Tensor:
    """Smallest factor that covers a share `level` of fresh rows: the ``ceil((n + 1) level)``-th smallest ratio.

    Args:
        ratio: (n,) residual size over predicted half-width on calibration rows of one side.
        level: share of that side to cover, in (0, 1).

    For exchangeable rows, ``P(size <= factor * half-width) >= level`` (split conformal prediction).
    """
    rank = math.ceil((len(ratio) + 1) * level - 1e-9)
    if rank > len(ratio):
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise DataError(
            f"Expected at least {needed} calibration residuals on each side for a conformal interval at level {level}, "
            f"but got {len(ratio)}; give more calibration data, a lower level or another interval=."
        )
    return ratio.kthvalue(rank).values


def reference(score: Tensor, shape: tuple[int, ...], quantile: float) -> Reference:
    """In-distribution reference of epistemic scores; later scores above the `quantile` will be flagged.

    Args:
        score: (N, ...) scores of in-distribution rows.
        shape: channel shape, see `Reference`.
        quantile: share of in-distribution scores that stay unflagged.
    """
    if not 0 < quantile < 1:
        raise SettingsError(f"Expected a quantile in (0, 1), but got {quantile}.")
    if not torch.isfinite(score).all():
        raise DataError(
            "Expected finite epistemic scores to set the threshold on, but got NaN or inf; check the data."
        )
    channels = math.prod(shape)
    ordered = score.permute(channel_order(shape, score.dim())).reshape(channels, -1).sort(1).values
    grid = torch.linspace(0, 1, GRID, dtype=torch.float64)
    threshold = _quantiles(ordered, torch.tensor([quantile], dtype=torch.float64))
    return Reference(_quantiles(ordered, grid).reshape(*shape, GRID), threshold.reshape(shape))


def _quantiles(ordered: Tensor, shares: Tensor) -> Tensor:
    """Linear-interpolation quantiles of sorted rows; unlike torch.quantile without a limit on their length."""
    position = shares * (ordered.shape[1] - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=ordered.shape[1] - 1)
    part = (position - low).to(ordered.dtype)
    return torch.lerp(ordered[:, low], ordered[:, high], part.expand(len(ordered), -1))
