"""Mean and standard deviation of many columns, read once and in parts."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from splitpoint.cache import Table


class Moments:
    """Counts, means and squared deviations of columns that come in parts; NaN entries do not count.

    Parts are joined by the update of Chan, Golub and LeVeque (1979), in float64.

    Attributes:
        count: (C,) entries so far.
        mean: (C,) of them.
        scatter: (C,) sums of their squared deviations from the mean.
    """

    def __init__(self, parts: Iterable[Tensor]) -> None:
        self.count, self.mean, self.scatter = (torch.zeros((), dtype=torch.float64) for _ in range(3))
        for part in parts:
            self._add(part.double())

    def _add(self, rows: Tensor) -> None:
        """Join with further rows (N, C)."""
        seen = (~rows.isnan()).sum(0).double()
        here = rows.nansum(0) / seen.clamp(min=1)
        joint = (self.count + seen).clamp(min=1)
        shift = here - self.mean
        spread = (rows - here).square().nansum(0)
        self.scatter = self.scatter + spread + shift.square() * self.count * seen / joint
        self.mean, self.count = self.mean + shift * seen / joint, self.count + seen

    @property
    def deviation(self) -> Tensor:
        """(C,) square root of the mean squared deviation."""
        return (self.scatter / self.count.clamp(min=1)).sqrt()


def feature_moments(table: Table) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C,) of the features; a constant feature has deviation 1."""
    found = Moments(part["features"] for part in table.slices())
    constant = found.deviation <= 1e-7 * (1 + found.mean.abs())
    return found.mean.float(), torch.where(constant, 1.0, found.deviation).float()
