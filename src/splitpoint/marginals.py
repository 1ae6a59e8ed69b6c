"""Distances in the features that are there: what is left of a quadratic form where some features are missing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST = 1e-11
"""Share of the largest eigenvalue below which one counts as zero, where features are more than dimensions."""


def complement(whiten: Tensor, missing: Tensor) -> Tensor:
    """Matrix (W, W) that takes out of ``x whiten`` all that the missing features of x can reach.

    Of ``|x whiten|^2`` it leaves the smallest value over whatever the missing features may have been: the squared
    Mahalanobis distance of the others by their own marginal covariance, or their own leverage. That has fewer terms; it
    is brought back to the size that it has with all of them, by their number, so that ordinary rows stay ordinary.

    Where the missing features reach everything, as they do in a narrow sketch of all, nothing is taken out.

    Args:
        whiten: (C, W).
        missing: (C,) bool.
    """
    gone, width = whiten[missing].double(), whiten.shape[1]
    eye = torch.eye(width, dtype=torch.float64, device=whiten.device)
    if len(gone) <= width:
        basis = torch.linalg.qr(gone.T).Q
    else:
        values, vectors = torch.linalg.eigh(gone.T @ gone)
        basis = vectors[:, values > LEAST * values[-1]]
    left = width - basis.shape[1]
    if left < 1 or not len(gone):
        return eye
    found: Tensor = (eye - basis @ basis.T) * math.sqrt(width / left)
    return found


def without(whiten: Tensor, missing: Tensor) -> Tensor:
    """``whiten`` (C, W) times its `complement`, in its own precision: zero for all features that are missing."""
    found: Tensor = (whiten.double() @ complement(whiten, missing)).to(whiten)
    return found
