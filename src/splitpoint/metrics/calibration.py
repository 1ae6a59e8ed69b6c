"""Whether probabilities mean what they say: calibration errors, and the diagram behind them.

Arguments are as in `probabilities`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.errors import SettingsError
from splitpoint.metrics.order import equal_parts, sorted_by
from splitpoint.metrics.probabilities import labelled_rows
from splitpoint.prediction import ClassificationPrediction


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: mean `confidence` and `accuracy` of every bin, NaN where it is empty, and its `count`."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def reliability(prediction: ClassificationPrediction | Tensor, label: Tensor, bins: int = 15) -> Reliability:
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


def ece(prediction: ClassificationPrediction | Tensor, label: Tensor, bins: int = 15) -> float:
    """Expected calibration error of the top class over equal-width bins ``(i/bins, (i+1)/bins]`` (E38).

    >>> probs = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
    >>> round(ece(probs, torch.tensor([0, 1])), 4)
    0.3
    """
    probs, label = labelled_rows(prediction, label)
    confidence, choice = probs.max(1)
    gap = (choice == label).double() - confidence
    return _mean_gap(gap, _equal_width(confidence, bins), bins)


def ece_floor(prediction: ClassificationPrediction | Tensor, label: Tensor, bins: int = 15) -> float:
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


def adaptive_ece(prediction: ClassificationPrediction | Tensor, label: Tensor, bins: int = 15) -> float:
    """Calibration error of the top class as in `ece`, but over bins of equally many rows.

    Rows of equal confidence share their mean accuracy, so that their order does not matter.

    Source: Nguyen and O'Connor (2015), Posterior calibration and exploratory analysis for natural language processing.
    """
    _check(bins)
    probs, label = labelled_rows(prediction, label)
    confidence, choice = probs.max(1)
    gap = sorted_by(confidence, (choice == label).double() - confidence)
    return _mean_gap(gap, equal_parts(len(gap), bins, gap.device), bins)


def classwise_ece(prediction: ClassificationPrediction | Tensor, label: Tensor, bins: int = 15) -> float:
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
    _check(bins)
    return (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)


def _mean_gap(gap: Tensor, index: Tensor, bins: int) -> float:
    """Sizes of the summed gaps of every bin, over the number of gaps: ``sum_m |B_m|/N |mean gap of B_m|``."""
    return float(gap.new_zeros(bins).index_add_(0, index, gap).abs().sum() / len(gap))


def _check(bins: int) -> None:
    if bins < 1:
        raise SettingsError(f"Expected bins >= 1, but got {bins}.")
