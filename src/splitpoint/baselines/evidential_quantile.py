"""Evidential quantile regression with an asymmetric-Laplace likelihood (Huttel et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint.baselines.answers import central_quantiles, quantile_answer
from splitpoint.baselines.evidential_regression import NormalInverseGamma, student_nll
from splitpoint.baselines.settings import RegressionMethod
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.errors import SettingsError
from splitpoint.losses import pinball_errors
from splitpoint.tasks import Answer


def quantile_nll(prior: NormalInverseGamma, target: Tensor, quantile: Tensor | float) -> Tensor:
    """Negative log-likelihood of an asymmetric Laplace target under a Normal-Inverse-Gamma prior.

    An asymmetric Laplace variable is normal given an exponential z (Kozumi & Kobayashi 2011):
    ``y ~ N(mu + theta z, omega sigma z)`` with ``theta = (1 - 2q) / (q (1 - q))`` and ``omega = 2 / (q (1 - q))``.
    With z at its mean ``E[sigma] = beta / (alpha - 1)``, integrating mu and sigma out leaves a Student t with 2 alpha
    degrees, location ``gamma + theta z`` and squared scale ``beta (1 + omega z nu) / (nu alpha)``.
    """
    theta = (1 - 2 * quantile) / (quantile * (1 - quantile))
    omega = 2 / (quantile * (1 - quantile))
    z = prior.aleatoric
    error = target - prior.gamma - theta * z
    return student_nll(error, prior.nu, prior.alpha, 2 * prior.beta * (1 + omega * z * prior.nu))


@dataclass(frozen=True, kw_only=True)
class EvidentialQuantile(NetworkBaseline, RegressionMethod[NetworkPredictor]):
    """One Normal-Inverse-Gamma prior for every quantile: both bounds of each level, and the median as the mean.

    The loss is the mean over quantiles of ``NLL + weight * pinball(y - gamma) (2 nu + alpha + 1 / beta)``; its last
    term keeps beta, and with it the shift theta z, from standing in for the quantile. Aleatoric and epistemic parts are
    the means over the quantiles of ``beta / (alpha - 1)``, which has the unit of the target as the scale of an
    asymmetric Laplace law has, and of ``beta / (nu (alpha - 1))``. Quantiles that cross are put in order.

    Attributes:
        regulariser: weight of the evidence regulariser.
    """

    regulariser: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regulariser < 0:
            raise SettingsError(f"Expected regulariser >= 0, but got {self.regulariser}.")

    @property
    def _width(self) -> int:
        return 4 * len(central_quantiles(self.levels))

    def _loss(self, raw: Tensor, target: Tensor, part: float) -> Tensor:  # noqa: ARG002
        prior, target = self._priors(raw), target.unsqueeze(1)
        quantiles = raw.new_tensor(central_quantiles(self.levels)).reshape(-1, *[1] * (raw.dim() - 2))
        evidence = 2 * prior.nu + prior.alpha + 1 / prior.beta
        penalty = pinball_errors(target - prior.gamma, quantiles) * evidence
        return (quantile_nll(prior, target, quantiles) + self.regulariser * penalty).mean(1)

    def _priors(self, raw: Tensor) -> NormalInverseGamma:
        """Raw outputs (R, 4 Q, D, ...) -> the priors of all quantiles, each part (R, Q, D, ...)."""
        return NormalInverseGamma.of(raw.unflatten(1, (4, -1)))

    def _answer(self, predictor: NetworkPredictor, runs: Tensor, score: Tensor | None) -> Answer:  # noqa: ARG002
        prior = self._priors(runs[0])
        quantiles = torch.stack([predictor.in_units(gamma)[0] for gamma in prior.gamma.unbind(1)])
        _, epistemic = predictor.in_units(prior.gamma[:, 0], prior.epistemic.mean(1))
        spread = predictor.fitted["spread"].reshape(-1, *[1] * (epistemic.dim() - 2))
        return quantile_answer(quantiles, self.levels, epistemic, spread * prior.aleatoric.mean(1))
