"""Random splits of a table into training and test rows, and standardisation by the training rows alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splitpoint.errors import DataError, SettingsError


def split(rows: int, trial: int, test_share: float = 0.1) -> tuple[Tensor, Tensor]:
    """Row numbers ``(train, test)`` of one trial: disjoint, together complete, the same wherever they are drawn.

    The permutation is that of NumPy's ``RandomState(trial)``, cut after ``round(rows * (1 - test_share))`` rows, which
    is the split of the authors' code; they use `test_share` 0.1, and 0.2 for boston and wine.
    """
    if not 0 < test_share < 1:
        raise SettingsError(f"Expected test_share in (0, 1), but got {test_share}.")
    cut = round(rows * (1 - test_share))
    if not 0 < cut < rows:
        raise DataError(
            f"Expected rows enough for both parts, but {rows} rows with test_share {test_share} leave none."
        )
    order = torch.from_numpy(np.random.RandomState(trial).permutation(rows))
    return order[:cut], order[cut:]


@dataclass(frozen=True)
class Standardised:
    """Training and test rows with mean 0 and standard deviation 1 in the training rows, in float32.

    Shapes are (N, D) and (N, 1). A feature that is constant in the training rows is centred and keeps its scale.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    centre: float
    scale: float

    def in_units(self, values: Tensor) -> Tensor:
        """Targets, predictions or bounds in the units of the target: ``centre + scale * values``."""
        return self.centre + self.scale * values

    def sizes_in_units(self, sizes: Tensor) -> Tensor:
        """Widths or standard deviations in the units of the target: ``scale * sizes``."""
        return self.scale * sizes


def standardise(x: Tensor, y: Tensor, train: Tensor, test: Tensor) -> Standardised:
    """Rows `train` and `test` of `x` (N, D) and `y` (N, 1), standardised by the statistics of the rows `train`."""
    x_centre, x_scale = _statistics(x[train])
    y_centre, y_scale = _statistics(y[train])
    x, scaled = (x - x_centre) / x_scale, (y - y_centre) / y_scale
    parts = (x[train], scaled[train], x[test], scaled[test])
    x_train, y_train, x_test, y_test = (part.float() for part in parts)
    return Standardised(x_train, y_train, x_test, y_test, float(y_centre), float(y_scale))


def _statistics(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of columns, in float64; a constant column has 1, whatever rounding leaves of it."""
    columns = columns.double()
    constant = columns.amax(0) == columns.amin(0)
    return columns.mean(0), columns.std(0, correction=0).masked_fill(constant, 1.0)
