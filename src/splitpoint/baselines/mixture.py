"""What ensembles and dropout share: several runs of networks with a likelihood, read as a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.baselines.answers import mixture_answer, mixture_of_normals
from splitpoint.baselines.gaussian import gaussian_nll, mean_and_variance
from splitpoint.baselines.settings import EitherMethod
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.tasks import Answer


@dataclass(frozen=True, kw_only=True)
class Mixture(NetworkBaseline, EitherMethod[NetworkPredictor]):
    """Networks that predict mean and variance, or class probabilities, and whose runs are members of a mixture.

    Regression: the mean variance is aleatoric, the variance of the means epistemic. Classification: mean
    probabilities, mutual information as epistemic and predictive entropy as total score.
    """

    width: ClassVar[int] = 2

    def _loss(self, raw: Tensor, target: Tensor, part: float) -> Tensor:  # noqa: ARG002
        if self.task == "classification":
            return F.cross_entropy(raw, target, reduction="none")
        return gaussian_nll(raw, target)

    def _answer(self, predictor: NetworkPredictor, runs: Tensor, score: Tensor | None) -> Answer:  # noqa: ARG002
        if self.task == "classification":
            return mixture_answer(runs.softmax(2))
        pairs = [predictor.in_units(*mean_and_variance(run)) for run in runs]
        means, variances = (torch.stack(values) for values in zip(*pairs, strict=True))
        return mixture_of_normals(means, variances, self.levels)
