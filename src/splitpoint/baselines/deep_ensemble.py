"""Deep ensembles: networks that differ in initial weights and row order (Lakshminarayanan et al. 2017)."""

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
from splitpoint.errors import SettingsError
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


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(Mixture):
    """M networks, trained as one stack, each from its own initial weights and in its own order of the rows.

    Regression: members predict mean and variance; the mixture's moments are reported, the mean variance as aleatoric
    and the variance of the means as epistemic. Classification: mean probabilities, mutual information as epistemic
    and predictive entropy as total score.

    Attributes:
        members: number of networks M.
    """

    members: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members < 1:
            raise SettingsError(f"Expected members >= 1, but got {self.members}.")

    @property
    def _members(self) -> int:
        return self.members
