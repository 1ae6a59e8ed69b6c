"""Leverage: how far a row's features lie from those the last layer was fitted to."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.tasks import Rows

WIDEST, PROJECTED = 2048, 512
LEAST_RIDGE = 1e-6
LARGEST = 0.8
REACH = 0.99


class Leverage(NamedTuple):
    """What `fit_leverage` finds.

    Attributes:
        inputs: what `Heads` computes the leverage of new rows with, without its leading axis: ``center``, ``spread``
            (1, C), ``whiten`` (C, W), ``floor``, ``reach`` (99% of the training rows lie within it), ``log_mean``,
            ``log_spread`` (1, 1).
        own: (n, 1) leverage of the training rows.
        left_out: (n, 1) the leverage that a training row would have had it been left out, ``lev / (1 - lev)``, as new
            rows are.
    """

    inputs: dict[str, Tensor]
    own: Tensor
    left_out: Tensor

    @property
    def shrink(self) -> Tensor:
        """(n, 1) residual of a training row over what it would be had the row been left out, ``1 - lev``."""
        return 1 - self.own.clamp(max=LARGEST)


def fit_leverage(table: Table, center: Tensor, spread: Tensor) -> Leverage:
    """Matrix and scales of ``lev(h) = 1/n + x' (X'X + n ridge I)^-1 x = floor + |x whiten|^2`` for standardised x.

    In a linear regression on these features the residual of a training row left out is ``r / (1 - lev)``, and the
    squared error at a new row is ``1 + lev`` times the noise; leverage grows with the square of the distance from
    the data. The ridge is the one under which the last layer w would be optimal, ``|X'r| / (n |w|)``: nearly zero for
    a layer trained to the end, larger for one that was stopped early. Features wider than 2048 are projected to 512
    at random, which keeps it about right.

    Args:
        table: columns ``features`` (C), ``output`` and ``residual``.
        center: (C,) mean of the features.
        spread: (C,) their deviation.
    """
    project = projection(len(center))
    width, n = project.shape[1], table.rows

    def standardised(part: Rows) -> Tensor:
        return ((part["features"] - center) / spread @ project).double()

    outputs = sum((part["output"].double().sum(0) for part in table.slices()), torch.zeros((), dtype=torch.float64))
    gram, with_output, with_residual = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for part in table.slices():
        x = standardised(part)
        gram = gram + x.T @ x / n
        with_output = with_output + x.T @ (part["output"].double() - outputs / n) / n
        with_residual = with_residual + x.T @ part["residual"].double().nan_to_num(0.0) / n
    eye = torch.eye(width, dtype=torch.float64)
    floor = LEAST_RIDGE * gram.diagonal().sum().clamp(min=1e-6)
    layer = torch.linalg.solve(gram + floor * eye, with_output)
    ridge = (with_residual.norm() / layer.norm().clamp(min=1e-12)).clamp(floor, max(1.0, float(floor)))
    factor = torch.linalg.cholesky(gram + ridge * eye) * math.sqrt(n)
    whiten = (project.double() @ torch.linalg.inv(factor).T).float()
    squares = [((p["features"] - center) / spread @ whiten).square().sum(1, keepdim=True) for p in table.slices()]
    leverage = torch.cat(squares) + 1 / n
    left_out = leverage / (1 - leverage.clamp(max=LARGEST))
    log = left_out.log()
    reach = left_out.flatten().sort().values[int(REACH * (n - 1))]
    inputs = {
        "center": center[None],
        "spread": spread[None],
        "whiten": whiten,
        "floor": torch.full((1, 1), 1 / n, dtype=torch.float32),
        "reach": reach.reshape(1, 1),
        "log_mean": log.mean().reshape(1, 1),
        "log_spread": log.std(correction=0).clamp(min=1e-3).reshape(1, 1),
    }
    return Leverage(inputs, leverage, left_out)


def projection(width: int) -> Tensor:
    """Identity (width, width) up to 2048 columns, else a fixed random projection to 512."""
    if width <= WIDEST:
        return torch.eye(width, dtype=torch.float32)
    return torch.randn(width, PROJECTED, generator=torch.Generator().manual_seed(0), dtype=torch.float32) / math.sqrt(
        PROJECTED
    )
