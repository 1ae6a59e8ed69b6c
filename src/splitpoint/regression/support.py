"""How far a row lies from the training rows in all layers of a network: the leverage of what they read, together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from splitpoint.cache import Moments, Table
from splitpoint.heads import FARTHEST


class JointLeverage(nn.Module):
    """Leverage ``1/n + x' (X'X + I)^-1 x = floor + |x whiten|^2`` of standardised features x of several layers.

    The last layer forgets what it has no use for; the model's own input and the layers between have not forgotten it.
    The identity stands for one more row of unit size in every direction, so there may be fewer rows than features, and
    neither targets nor residuals have a part in it. New rows are no part of ``X'X``, so they need no correction to be
    what a training row would be had it been left out, ``lev / (1 - lev)``.

    Args:
        state: ``center`` and ``spread`` (1, C), ``whiten`` (C, C) and ``floor`` (1, 1).
    """

    center: Tensor
    spread: Tensor
    whiten: Tensor
    floor: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in ("center", "spread", "whiten", "floor"):
            self.register_buffer(name, state[name])

    @staticmethod
    def fit(table: Table) -> JointLeverage:
        """The leverage of rows with columns ``context`` (W) and ``features`` (C - W)."""
        center, spread = _standardisation(table)
        gram = torch.eye(len(center), dtype=torch.float64)
        for rows in _rows(table):
            x = ((rows - center) / spread).double()
            gram += x.T @ x
        whiten = torch.linalg.inv(torch.linalg.cholesky(gram)).T.float().contiguous()
        floor = torch.full((1, 1), 1 / table.rows, dtype=torch.float32)
        return JointLeverage({"center": center[None], "spread": spread[None], "whiten": whiten, "floor": floor})

    def forward(self, context: Tensor, features: Tensor) -> Tensor:
        """Leverage (N, 1) of rows (N, W) and (N, C - W)."""
        x = ((torch.cat([context, features], 1) - self.center) / self.spread).clamp(-FARTHEST, FARTHEST)
        found: Tensor = (x @ self.whiten).square().sum(1, keepdim=True) + self.floor
        return found.clamp(max=FARTHEST)


def _rows(table: Table) -> Iterator[Tensor]:
    for part in table.slices():
        yield torch.cat([part["context"], part["features"]], 1)


def _standardisation(table: Table) -> tuple[Tensor, Tensor]:
    """Mean and deviation (C,) of the features.

    A constant one counts as if it had moved in one row, as far as others usually do: where it does move, the row is
    unlike any other.
    """
    found = Moments(_rows(table))
    moving = found.deviation[~found.constant]
    usual = moving.median() / table.rows**0.5 if len(moving) else torch.ones((), dtype=torch.float64)
    return found.mean.float(), torch.where(found.constant, usual, found.deviation).float()
