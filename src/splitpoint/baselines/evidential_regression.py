"""Deep evidential regression: a network that predicts a Normal-Inverse-Gamma prior (Amini et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.baselines.answers import Answer, RegressionAnswer
from splitpoint.baselines.settings import About
from splitpoint.baselines.student import student_quantiles
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.errors import SettingsError

TINY = 1e-6


class NormalInverseGamma(NamedTuple):
    """Parameters of ``mu ~ N(gamma, sigma^2 / nu), sigma^2 ~ InvGamma(alpha, beta)``, each (R, D, ...)."""

    gamma: Tensor
    nu: Tensor
    alpha: Tensor
    beta: Tensor

    @staticmethod
    def of(raw: Tensor) -> NormalInverseGamma:
        """From raw outputs (R, 4, D, ...): gamma free, nu and beta by softplus, alpha by softplus + 1."""
        nu, alpha, beta = (F.softplus(raw[:, 1:]) + TINY).unbind(1)
        return NormalInverseGamma(raw[:, 0], nu, alpha + 1, beta)

    @property
    def aleatoric(self) -> Tensor:
        """``E[sigma^2] = beta / (alpha - 1)``."""
        return self.beta / (self.alpha - 1)

    @property
    def epistemic(self) -> Tensor:
        """``Var[mu] = beta / (nu (alpha - 1))``."""
        return self.beta / (self.nu * (self.alpha - 1))


def student_nll(error: Tensor, nu: Tensor, alpha: Tensor, omega: Tensor) -> Tensor:
    """Negative log-density of a Student t with 2 alpha degrees and squared scale ``omega / (2 alpha nu)`` at `error`.

    ``log(pi / nu) / 2 - alpha log omega + (alpha + 1/2) log(nu error^2 + omega) + lgamma(alpha) - lgamma(alpha + 1/2)``
    """
    return (
        0.5 * (math.pi / nu).log()
        - alpha * omega.log()
        + (alpha + 0.5) * (nu * error.square() + omega).log()
        + torch.lgamma(alpha)
        - torch.lgamma(alpha + 0.5)
    )


@dataclass(frozen=True, kw_only=True)
class EvidentialRegression(NetworkBaseline):
    """Normal-Inverse-Gamma outputs; loss ``NLL + weight * |y - gamma| (2 nu + alpha)``.

    The predictive distribution is a Student t with 2 alpha degrees, location gamma and squared scale
    ``beta (1 + nu) / (nu alpha)``, from which the interval comes.

    Attributes:
        regulariser: weight of the evidence regulariser.
    """

    about: ClassVar[About] = About(
        tasks=("regression",),
        post_hoc=False,
        passes="1",
        needs="factory",
        epistemic="beta / (nu (alpha - 1))",
        reference="Amini et al. 2020",
    )
    width: ClassVar[int] = 4

    regulariser: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.regulariser < math.inf:
            raise SettingsError(f"Expected regulariser >= 0, but got {self.regulariser}.")

    def _loss(self, raw: Tensor, target: Tensor, part: float) -> Tensor:  # noqa: ARG002
        prior = NormalInverseGamma.of(raw)
        error = target - prior.gamma
        omega = 2 * prior.beta * (1 + prior.nu)
        evidence = 2 * prior.nu + prior.alpha
        return student_nll(error, prior.nu, prior.alpha, omega) + self.regulariser * error.abs() * evidence

    def _answer(self, predictor: NetworkPredictor, runs: Tensor, score: Tensor | None) -> Answer:  # noqa: ARG002
        prior = NormalInverseGamma.of(runs[0])
        squared = prior.beta * (1 + prior.nu) / (prior.nu * prior.alpha)
        mean, aleatoric, epistemic, squared = predictor.in_units(prior.gamma, prior.aleatoric, prior.epistemic, squared)
        scale, freedom = squared.sqrt(), 2 * prior.alpha
        half = torch.stack([scale * student_quantiles(freedom, (1 + level) / 2) for level in self.levels], -1)
        return RegressionAnswer(
            levels=self.levels,
            mean=mean,
            lowers=mean.unsqueeze(-1) - half,
            uppers=mean.unsqueeze(-1) + half,
            aleatoric=aleatoric,
            epistemic=epistemic,
            total=aleatoric + epistemic,
            scale=scale,
            freedom=freedom,
        )
