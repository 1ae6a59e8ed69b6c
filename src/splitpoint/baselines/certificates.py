"""Orthonormal certificates: directions of feature space in which the training set does not move."""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.calibration import moments
from splitpoint.errors import SettingsError


def check_certificates(count: int, penalty: float) -> None:
    """Refuse a number of certificates or a weight of their orthonormality that makes no sense."""
    if count < 1 or not 0 < penalty < float("inf"):
        raise SettingsError(f"Expected certificates >= 1 and penalty > 0, but got {count} and {penalty}.")


def fit_certificates(table: Table, count: int, penalty: float) -> dict[str, Tensor]:
    """Certificates ``C`` (C, k) that minimise ``E |C^T h|^2 + penalty |C^T C - I|^2`` over standardised features h.

    In the basis of the principal axes of h, with variances s, the loss falls apart into ``s g + penalty (g - 1)^2``
    for the squared gain g of every certificate, so that certificates are the axes of the k smallest variances with
    ``g = max(0, 1 - s / (2 penalty))``. This is the limit that training by gradient descent approaches. There are no
    more certificates than features: others would add nothing to the score.

    Args:
        table: rows with a column "features".
        count: most certificates k.
        penalty: weight of the orthonormality.
    """
    center, spread = moments(table)
    scatter = torch.zeros(len(center), len(center), dtype=torch.float64)
    for part in table.slices():
        rows = ((part["features"] - center) / spread).double()
        scatter += rows.T @ rows
    variance, axes = torch.linalg.eigh(scatter / table.rows)
    gain = (1 - variance[:count] / (2 * penalty)).clamp(min=0).sqrt()
    return {"center": center, "spread": spread, "certificates": (axes[:, :count] * gain).float()}


def certificate_score(rows: Tensor, center: Tensor, spread: Tensor, certificates: Tensor) -> Tensor:
    """``|C^T h|^2 / k`` of feature rows (R, C) -> (R, 1)."""
    return (((rows - center) / spread) @ certificates).square().mean(1, keepdim=True)
