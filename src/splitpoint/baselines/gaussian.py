"""A network that predicts mean and variance by maximum likelihood (Nix & Weigend 1994)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.baselines.answers import normal_answer
from splitpoint.baselines.settings import RegressionMethod
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.tasks import Answer

SMALLEST_VARIANCE = 1e-6


def gaussian_nll(raw: Tensor, target: Tensor) -> Tensor:
    """``log sigma^2 / 2 + (y - mu)^2 / (2 sigma^2)`` for raw (R, 2, D, ...): mean, and variance before softplus."""
    mean, variance = mean_and_variance(raw)
    return 0.5 * (variance.log() + (target - mean).square() / variance)


def mean_and_variance(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance from raw outputs (..., 2, D, *positions) with the pair on axis 1."""
    return raw[:, 0], F.softplus(raw[:, 1]) + SMALLEST_VARIANCE


@dataclass(frozen=True, kw_only=True)
class Gaussian(NetworkBaseline, RegressionMethod[NetworkPredictor]):
    """Mean and variance network with Gaussian likelihood; the interval is ``mu -+ z sigma``.

    It has no epistemic part: its epistemic score is 0 everywhere.
    """

    width: ClassVar[int] = 2

    def _loss(self, raw: Tensor, target: Tensor, part: float) -> Tensor:  # noqa: ARG002
        return gaussian_nll(raw, target)

    def _answer(self, predictor: NetworkPredictor, runs: Tensor, score: Tensor | None) -> Answer:  # noqa: ARG002
        mean, variance = predictor.in_units(*mean_and_variance(runs[0]))
        return normal_answer(mean, variance, torch.zeros_like(variance), self.levels)
