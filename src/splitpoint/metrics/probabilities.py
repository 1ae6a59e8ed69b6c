"""Quality of class probabilities (rows, classes): accuracy, calibration, proper scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.errors import DataError, ShapeError


def _checked(probs: Tensor, label: Tensor) -> Tensor:
    """Labels (N,) for probabilities (N, K); (N, 1) is the same, anything else an error."""
    rows = len(probs)
    if probs.dim() != 2 or tuple(label.shape) not in {(rows,), (rows, 1)}:
        raise ShapeError(
            f"Expected probabilities (N, K) and labels (N,), but got {tuple(probs.shape)} and {tuple(label.shape)}; "
            "reshape them, and leave out rows without a label."
        )
    if rows and not 0 <= int(label.min()) <= int(label.max()) < probs.shape[1]:
        raise DataError(f"Expected labels from 0 to {probs.shape[1] - 1}, but got others; leave out ignored rows.")
    return label.reshape(rows).long()


def accuracy(probs: Tensor, label: Tensor) -> float:
    """Share of rows whose most probable class is the label."""
    label = _checked(probs, label)
    return float((probs.argmax(1) == label).double().mean())


def nll(probs: Tensor, label: Tensor) -> float:
    """Mean negative log-likelihood of the label, in nats."""
    label = _checked(probs, label)
    chosen = probs.double().gather(1, label[:, None])
    return float(-chosen.clamp(min=torch.finfo(torch.float64).tiny).log().mean())


def brier(probs: Tensor, label: Tensor) -> float:
    """Mean squared distance between the probabilities and the one-hot label."""
    label = _checked(probs, label)
    return float((probs - F.one_hot(label, probs.shape[1])).square().sum(1).mean())


def ece(probs: Tensor, label: Tensor, bins: int = 15) -> float:
    """Expected calibration error of the top class over equal-width bins ``(i/bins, (i+1)/bins]`` (E38).

    >>> probs = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
    >>> round(ece(probs, torch.tensor([0, 1])), 4)
    0.3
    """
    label = _checked(probs, label)
    confidence, choice = probs.double().max(1)
    index = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    gap = (choice == label).double() - confidence
    return float(gap.new_zeros(bins).index_add_(0, index, gap).abs().sum() / len(label))
