"""Deep evidential regression: a network that predicts a Normal-Inverse-Gamma prior (Amini et al. 2020)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.baselines.settings import RegressionMethod
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.errors import SettingsError
from splitpoint.tasks import Answer, RegressionAnswer

TINY = 1e-6

NODES = 4097
QUADRATURE = 48
NEWTON_STEPS = 40
"""Points of a table of Student quantiles, and of the quadrature and Newton steps that it is made with."""


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


def student_quantiles(freedom: Tensor, probability: float) -> Tensor:
    """The `probability`-quantile of Student's t with `freedom` >= 2 degrees, to about 1e-6 of its value.

    Linear interpolation in ``1 / freedom`` between quantiles that were solved for numerically.

    >>> student_quantiles(torch.tensor([2.0, 10.0, 1e9]), 0.975)
    tensor([4.3027, 2.2281, 1.9600])
    """
    table = _table(probability).to(freedom.device)
    place = (2 / freedom.double()).clamp(0, 1) * (NODES - 1)
    low = place.floor().long().clamp(max=NODES - 2)
    return torch.lerp(table[low], table[low + 1], place - low).to(freedom.dtype)


@functools.lru_cache(maxsize=64)
def _table(probability: float) -> Tensor:
    """Quantiles on an even grid of ``1 / freedom`` from 0 (normal) to 1/2, by Newton's method on the angle.

    With ``t = sqrt(v) tan(a)`` the distribution function is ``1/2 + c integral_0^a cos^(v-1)``, a smooth integral.
    """
    inverse = torch.linspace(0, 0.5, NODES, dtype=torch.float64)
    v = 1 / inverse[1:]
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(QUADRATURE))
    constant = torch.exp(torch.lgamma((v + 1) / 2) - torch.lgamma(v / 2)) / math.sqrt(math.pi)
    normal = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
    angle = torch.atan(normal / v.sqrt())
    for _ in range(NEWTON_STEPS):
        inside = angle[:, None] * (nodes + 1) / 2
        area = constant * angle / 2 * (weights * ((v[:, None] - 1) * inside.cos().log()).exp()).sum(1)
        slope = constant * ((v - 1) * angle.cos().log()).exp()
        angle = (angle - (area - (probability - 0.5)) / slope).clamp(-1.5707, 1.5707)
    return torch.cat([normal[None], v.sqrt() * angle.tan()])


@dataclass(frozen=True, kw_only=True)
class EvidentialRegression(NetworkBaseline, RegressionMethod[NetworkPredictor]):
    """Normal-Inverse-Gamma outputs; loss ``NLL + weight * |y - gamma| (2 nu + alpha)``.

    The predictive distribution is a Student t with 2 alpha degrees, location gamma and squared scale
    ``beta (1 + nu) / (nu alpha)``, from which the interval comes.

    Attributes:
        regulariser: weight of the evidence regulariser.
    """

    width: ClassVar[int] = 4

    regulariser: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regulariser < 0:
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
