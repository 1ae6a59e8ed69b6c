"""Quality of prediction intervals, judged at the highest fitted level. NaN targets do not count."""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.prediction import RegressionPrediction, aligned


def _observed(prediction: RegressionPrediction, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    target = aligned(prediction.mean, target)
    seen = ~target.isnan()
    return target[seen], prediction.mean[seen], prediction.lower[seen], prediction.upper[seen]


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def picp(prediction: RegressionPrediction, target: Tensor) -> float:
    """Share of targets inside the interval (prediction interval coverage probability)."""
    y, _, low, high = _observed(prediction, target)
    return _share((low <= y) & (y <= high))


def picp_up(prediction: RegressionPrediction, target: Tensor) -> float:
    """Share of targets above the mean that stay below the upper bound; NaN when there is none."""
    y, mean, _, high = _observed(prediction, target)
    return _share((y <= high)[y > mean])


def picp_down(prediction: RegressionPrediction, target: Tensor) -> float:
    """Share of targets below the mean that stay above the lower bound; NaN when there is none."""
    y, mean, low, _ = _observed(prediction, target)
    return _share((y >= low)[y < mean])


def piece_plus(prediction: RegressionPrediction, target: Tensor) -> float:
    """Coverage error of the upper side, ``|picp_up - level|`` (E36)."""
    return abs(picp_up(prediction, target) - prediction.levels[-1])


def piece_minus(prediction: RegressionPrediction, target: Tensor) -> float:
    """Coverage error of the lower side, ``|picp_down - level|`` (E36)."""
    return abs(picp_down(prediction, target) - prediction.levels[-1])


def mpiw(prediction: RegressionPrediction, target: Tensor) -> float:
    """Mean width of the interval where there is a target."""
    _, _, low, high = _observed(prediction, target)
    return float((high - low).mean())


def winkler(prediction: RegressionPrediction, target: Tensor) -> float:
    """Winkler (interval) score: width plus ``2 / alpha`` times the distance of a target outside (E37)."""
    y, _, low, high = _observed(prediction, target)
    missed = torch.relu(low - y) + torch.relu(y - high)
    return float((high - low + 2 / (1 - prediction.levels[-1]) * missed).mean())
