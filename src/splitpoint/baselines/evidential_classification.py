"""Evidential deep learning: a network that predicts a Dirichlet distribution (Sensoy et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.baselines.settings import ClassificationMethod
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.consistency import entropy
from splitpoint.errors import SettingsError
from splitpoint.tasks import Answer, ClassAnswer


def dirichlet(logits: Tensor) -> Tensor:
    """Concentrations ``alpha = softplus(logits) + 1`` (R, K, ...): evidence plus one."""
    return F.softplus(logits) + 1


def squared_risk(alpha: Tensor, one_hot: Tensor) -> Tensor:
    """Expected squared error ``sum_k (y_k - p_k)^2 + p_k (1 - p_k) / (S + 1)`` under the Dirichlet, p = alpha / S."""
    strength = alpha.sum(1, keepdim=True)
    probs = alpha / strength
    return ((one_hot - probs).square() + probs * (1 - probs) / (strength + 1)).sum(1)


def uniform_divergence(alpha: Tensor) -> Tensor:
    """``KL(Dirichlet(alpha) || Dirichlet(1, ..., 1))`` along axis 1."""
    strength = alpha.sum(1)
    log_ratio = torch.lgamma(strength) - torch.lgamma(alpha).sum(1) - math.lgamma(alpha.shape[1])
    slopes = torch.digamma(alpha) - torch.digamma(strength).unsqueeze(1)
    return log_ratio + ((alpha - 1) * slopes).sum(1)


@dataclass(frozen=True, kw_only=True)
class EvidentialClassification(NetworkBaseline, ClassificationMethod[NetworkPredictor]):
    """Dirichlet outputs; loss ``squared risk + weight * anneal * KL`` of the evidence against wrong classes.

    Probabilities are the Dirichlet's mean ``alpha / S``; the epistemic score is the vacuity ``K / S``. `anneal` rises
    from 0 to 1 over the first part of the training.

    Attributes:
        regulariser: weight of the divergence.
        annealing: share of the training in which it rises to its weight.
    """

    regulariser: float = 1e-4
    annealing: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regulariser < 0:
            raise SettingsError(f"Expected regulariser >= 0, but got {self.regulariser}.")
        if not 0 < self.annealing <= 1:
            raise SettingsError(f"Expected annealing in (0, 1], but got {self.annealing}.")

    def _loss(self, raw: Tensor, target: Tensor, part: float) -> Tensor:
        alpha = dirichlet(raw)
        one_hot = F.one_hot(target, raw.shape[1]).movedim(-1, 1).to(raw.dtype)
        wrong = one_hot + (1 - one_hot) * alpha
        weight = self.regulariser * min(1.0, part / self.annealing)
        return squared_risk(alpha, one_hot) + weight * uniform_divergence(wrong)

    def _answer(self, predictor: NetworkPredictor, runs: Tensor, score: Tensor | None) -> Answer:  # noqa: ARG002
        alpha = dirichlet(runs[0])
        strength = alpha.sum(1, keepdim=True)
        probs = alpha / strength
        vacuity = alpha.shape[1] / strength.squeeze(1)
        return ClassAnswer(probs, probs, epistemic=vacuity, total=entropy(probs, 1))
