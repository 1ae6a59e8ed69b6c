"""Quality of class probabilities: accuracy, proper scores, calibration errors and prediction sets.

The first argument is a `ClassificationPrediction`, or a tensor, an array or a list of probabilities (N, K),
(N, K, ...) or (N, ..., K) that sum to 1. Labels have its shape without the class axis; negative ones, such as -100, and
NaN do not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.errors import DataError, ShapeError
from splitpoint.metrics.given import Given, beside, check_probabilities, classes_of, predicted
from splitpoint.metrics.ranking import check_bins, equal_parts, sorted_by
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
    prediction: ClassificationPrediction | Given,
    label: Given,
    values: Tensor | None = None,
    *,
    order_only: bool = False,
) -> tuple[Tensor, Tensor]:
    """Probabilities (M, K) in float64 and labels (M,) of the rows and positions that have a label.

    `values` of the shape of the probabilities are read in their place where given. With `order_only` the probabilities
    may be any numbers, of which only the order counts.
    """
    probs = classes_of(prediction)
    label = without_class_axis(probs, beside(probs, label, "labels"))
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
    found = flat[seen].double()
    if values is None:
        check_probabilities(found, probs.dtype, order_only=order_only)
    return found, chosen.long()


def accuracy(prediction: ClassificationPrediction | Given, label: Given) -> float:
    """Share of rows whose most probable class is the label (E34); logits serve as well as probabilities."""
    probs, label = labelled_rows(prediction, label, order_only=True)
    return float((probs.argmax(1) == label).double().mean())


def nll(prediction: ClassificationPrediction | Given, label: Given) -> float:
    """Mean negative log-likelihood of the label, in nats."""
    probs, label = labelled_rows(prediction, label)
    chosen = probs.gather(1, label[:, None])
    return float(-chosen.clamp(min=torch.finfo(torch.float64).tiny).log().mean())


def brier(prediction: ClassificationPrediction | Given, label: Given) -> float:
    """Mean squared distance between the probabilities and the one-hot label, from 0 to 2."""
    probs, label = labelled_rows(prediction, label)
    return float((probs - F.one_hot(label, probs.shape[1])).square().sum(1).mean())


# Calibration


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: mean `confidence` and `accuracy` of every bin, NaN where it is empty, and its `count`."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def reliability(prediction: ClassificationPrediction | Given, label: Given, bins: int = 15) -> Reliability:
    """Confidence and accuracy of the top class in the bins that `ece` uses, each (bins,).

    >>> reliability(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]), bins=2).accuracy
    tensor([   nan, 0.5000], dtype=torch.float64)
    """
    probs, label = labelled_rows(prediction, label)
    confidence, choice = probs.max(1)
    index = _equal_width(confidence, bins)
    count = torch.bincount(index, minlength=bins)
    mean, right = (
        part.new_zeros(bins).index_add_(0, index, part) / count for part in (confidence, (choice == label).double())
    )
    return Reliability(mean, right, count)


def ece(prediction: ClassificationPrediction | Given, label: Given, bins: int = 15) -> float:
    """Expected calibration error of the top class over equal-width bins ``(i/bins, (i+1)/bins]`` (E38).

    >>> probs = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
    >>> round(ece(probs, torch.tensor([0, 1])), 4)
    0.3
    """
    probs, label = labelled_rows(prediction, label)
    confidence, choice = probs.max(1)
    gap = (choice == label).double() - confidence
    return _mean_gap(gap, _equal_width(confidence, bins), bins)


def ece_floor(prediction: ClassificationPrediction | Given, label: Given, bins: int = 15) -> float:
    """What `ece` chance alone leaves these probabilities if they are right, on as many rows.

    The top class is then right with probability `c` in every row, and the number of right rows of a bin has variance
    ``v = sum c (1 - c)``, so that it is off by about ``min(sqrt(2 v / pi), 2 v)``: the mean size of a normal number,
    or of a rare event. Labels only say which rows count.

    >>> probs = torch.tensor([[0.8, 0.2]]).repeat(10_000, 1)  # off by sqrt(0.16 / 10,000) times sqrt(2 / pi)
    >>> round(ece_floor(probs, torch.zeros(10_000)), 4)
    0.0032
    """
    probs, _ = labelled_rows(prediction, label)
    confidence = probs.max(1).values
    index, variance = _equal_width(confidence, bins), confidence * (1 - confidence)
    of_bins = variance.new_zeros(bins).index_add_(0, index, variance)
    return float(torch.minimum((2 / torch.pi * of_bins).sqrt(), 2 * of_bins).sum() / len(confidence))


def adaptive_ece(prediction: ClassificationPrediction | Given, label: Given, bins: int = 15) -> float:
    """Calibration error of the top class as in `ece`, but over bins of equally many rows.

    Rows of equal confidence share their mean accuracy, so that their order does not matter.

    Source: Nguyen and O'Connor (2015), Posterior calibration and exploratory analysis for natural language processing.
    """
    check_bins(bins)
    probs, label = labelled_rows(prediction, label)
    confidence, choice = probs.max(1)
    gap = sorted_by(confidence, (choice == label).double() - confidence)
    return _mean_gap(gap, equal_parts(len(gap), bins, gap.device), bins)


def classwise_ece(prediction: ClassificationPrediction | Given, label: Given, bins: int = 15) -> float:
    """Mean over the classes of the calibration error of each class's probability, over equal-width bins.

    Source: Kull et al. (2019), Beyond temperature scaling.
    """
    probs, label = labelled_rows(prediction, label)
    classes = probs.shape[1]
    gap = F.one_hot(label, classes) - probs
    index = _equal_width(probs, bins) + bins * torch.arange(classes, device=probs.device)
    return _mean_gap(gap.flatten(), index.flatten(), bins * classes)


def _equal_width(confidence: Tensor, bins: int) -> Tensor:
    """Bin ``(i/bins, (i+1)/bins]`` of every confidence; 0 is in the first."""
    check_bins(bins)
    return (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)


def _mean_gap(gap: Tensor, index: Tensor, bins: int) -> float:
    """Sizes of the summed gaps of every bin, over the number of gaps: ``sum_m |B_m|/N |mean gap of B_m|``."""
    return float(gap.new_zeros(bins).index_add_(0, index, gap).abs().sum() / len(gap))


# Prediction sets


def set_coverage(prediction: ClassificationPrediction, label: Given) -> float:
    """Share of labels that are in their prediction set at its `set_level`; negative and NaN labels do not count."""
    inside, label = labelled_rows(prediction, label, _sets(prediction))
    return float(inside.gather(1, label[:, None]).mean())


def set_size(prediction: ClassificationPrediction) -> float:
    """Mean number of classes in a prediction set at its `set_level`, over all rows and positions."""
    sets = _sets(prediction)
    return float(sets.double().sum() / prediction.label.numel()) if sets.numel() else math.nan


def _sets(prediction: ClassificationPrediction) -> Tensor:
    level = predicted(prediction, ClassificationPrediction).set_level
    if level is None:
        raise DataError(
            "Expected a prediction with sets, but got one without; fit with enough calibration data, or another method."
        )
    return prediction.sets(level)
