"""Quality of class probabilities: accuracy and proper scores.

The first argument is a `ClassificationPrediction`, or a tensor of probabilities (N, K), (N, K, ...) or (N, ..., K).
Labels have its shape without the class axis; negative ones, such as -100, and NaN do not count.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.errors import DataError, ShapeError
from splitpoint.prediction import ClassificationPrediction


def without_class_axis(probs: Tensor, label: Tensor) -> Tensor:
    """The label without the class axis of size 1 that it may have: (N, 1) and (N, 1, ...) or (N, ..., 1)."""
    for axis in (1, -1):
        if label.dim() == probs.dim() > 1 and label.shape[axis] == 1:
            squeezed = label.squeeze(axis)
            if squeezed.shape == probs.movedim(axis, -1).shape[:-1]:
                return squeezed
    return label


def class_axis(probs: Tensor, label: Tensor) -> int:
    """Axis of the classes, 1 or -1, such that the rest has the shape of the label.

    Where both fit, it is the last one only if the probabilities sum to 1 along that axis and not along the second.
    """
    fits = [axis for axis in (1, -1) if probs.dim() > 1 and probs.movedim(axis, -1).shape[:-1] == label.shape]
    if not fits:
        raise ShapeError(
            "Expected probabilities (N, K), (N, K, ...) or (N, ..., K) and labels without the class axis, but got "
            f"{tuple(probs.shape)} and {tuple(label.shape)}; reshape them."
        )
    if len(fits) == 1 or probs.dim() == 2:
        return fits[0]
    sums = [((probs.sum(axis) - 1).abs() < 1e-3).all() for axis in fits]
    return fits[1] if sums[1] and not sums[0] else fits[0]


def labelled_rows(
    prediction: ClassificationPrediction | Tensor, label: Tensor, values: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Probabilities (M, K) in float64 and labels (M,) of the rows and positions that have a label.

    `values` of the shape of the probabilities are read in their place where given.
    """
    probs = prediction if isinstance(prediction, Tensor) else prediction.probs
    label = without_class_axis(probs, label)
    flat = (probs if values is None else values).movedim(class_axis(probs, label), -1)
    seen = label >= 0
    chosen = label[seen]
    classes = flat.shape[-1]
    if chosen.is_floating_point() and bool((chosen != chosen.round()).any()):
        raise DataError("Expected class indices as labels, but got fractions; pass whole numbers.")
    if len(chosen) and chosen.max() >= classes:
        raise DataError(
            f"Expected labels from 0 to {classes - 1}, but got {chosen.max().item():g}; "
            "give rows that do not count a negative label."
        )
    return flat[seen].double(), chosen.long()


def accuracy(prediction: ClassificationPrediction | Tensor, label: Tensor) -> float:
    """Share of rows whose most probable class is the label (E34)."""
    probs, label = labelled_rows(prediction, label)
    return float((probs.argmax(1) == label).double().mean())


def nll(prediction: ClassificationPrediction | Tensor, label: Tensor) -> float:
    """Mean negative log-likelihood of the label, in nats."""
    probs, label = labelled_rows(prediction, label)
    chosen = probs.gather(1, label[:, None])
    return float(-chosen.clamp(min=torch.finfo(torch.float64).tiny).log().mean())


def brier(prediction: ClassificationPrediction | Tensor, label: Tensor) -> float:
    """Mean squared distance between the probabilities and the one-hot label, from 0 to 2."""
    probs, label = labelled_rows(prediction, label)
    return float((probs - F.one_hot(label, probs.shape[1])).square().sum(1).mean())
