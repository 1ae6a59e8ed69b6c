"""Deep evidential regression: a network that predicts a Normal-Inverse-Gamma prior (Amini et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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
    found: Tensor = StudentNll.apply(*torch.broadcast_tensors(error, nu, alpha, omega))  # type: ignore[no-untyped-call]
    return found


class StudentNll(torch.autograd.Function):
    """`student_nll` with its gradients written out, which takes half the operations that recording it takes."""

    @staticmethod
    def forward(ctx: Any, error: Tensor, nu: Tensor, alpha: Tensor, omega: Tensor) -> Tensor:
        """See `student_nll`."""
        inside, more = torch.addcmul(omega, nu * error, error), alpha + 0.5
        log_ratio = (inside / omega).log()
        ctx.save_for_backward(error, nu, alpha, omega, inside, more, log_ratio)
        constant = torch.lgamma(alpha) - torch.lgamma(more) + 0.5 * (math.pi * omega / nu).log()
        return torch.addcmul(constant, more, log_ratio)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        """Gradients of error, nu, alpha and omega."""
        error, nu, alpha, omega, inside, more, log_ratio = ctx.saved_tensors
        (grad,) = grads
        pull = more * error / inside
        return (
            grad * 2 * nu * pull,
            grad * (error * pull - 0.5 / nu),
            grad * (log_ratio + torch.digamma(alpha) - torch.digamma(more)),
            grad * (more / inside - alpha / omega),
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
