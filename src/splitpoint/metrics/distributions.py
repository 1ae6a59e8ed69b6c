"""Quality of whole predictive distributions, for methods that have one. NaN targets do not count."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from splitpoint.errors import DataError
from splitpoint.prediction import RegressionPrediction, aligned

NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)
"""Gauss-Legendre rule on [-1, 1]."""

MOST_FREEDOM = 1e7
"""Degrees of freedom above which a Student t counts as one with this many: beyond, rounding hides the difference."""


def crps(prediction: RegressionPrediction, target: Tensor) -> float:
    """Continuous ranked probability score ``mean int (F(x) - 1[x >= y])^2 dx`` in closed form; units of the target.

    `F` is normal around `mean` with `scale`, or Student t where the prediction has `freedom`. The score of a Student t
    with one degree of freedom or less is infinite, since it has no mean.

    Source: Jordan, Krueger and Lerch (2019), Evaluating probabilistic forecasts with scoringRules.
    """
    if prediction.scale is None:
        raise DataError(
            "Expected a prediction with a distribution, but got one with intervals only; use pinball or winkler."
        )
    target = aligned(prediction.mean, target)
    seen = ~target.isnan()
    y, mean, scale = (part[seen].double() for part in (target, prediction.mean, prediction.scale))
    z = (y - mean) / scale
    if prediction.freedom is None:
        return float((scale * _normal_score(z)).mean())
    freedom = prediction.freedom.expand(seen.shape)[seen].double()
    return float((scale * _student_score(z, freedom)).mean())


def _normal_score(z: Tensor) -> Tensor:
    """``z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)``, the score of the standard normal at z."""
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    return z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi)


def _student_score(z: Tensor, freedom: Tensor) -> Tensor:
    """``z (2F - 1) + 2 f (v + z^2)/(v - 1) - 2 sqrt(v)/(v - 1) B(1/2, v - 1/2)/B(1/2, v/2)^2``, at z, v degrees."""
    v = freedom.clamp(max=MOST_FREEDOM)
    log_peak = torch.lgamma((v + 1) / 2) - torch.lgamma(v / 2) - math.log(math.pi) / 2
    spread = (_log_beta(v - 0.5) - 2 * _log_beta(v / 2)).exp()
    density = (log_peak - (v + 1) / 2 * torch.log1p(z.square() / v)).exp() / v.sqrt()
    score = 2 * z * _student_half(z, v, log_peak)
    score = score + (2 * density * (v + z.square()) - 2 * v.sqrt() * spread) / (v - 1)
    return torch.where(v > 1, score, torch.where(v.isnan(), v, torch.inf))


def _log_beta(b: Tensor) -> Tensor:
    """``log B(1/2, b)``."""
    return math.log(math.pi) / 2 + torch.lgamma(b) - torch.lgamma(b + 0.5)


def _student_half(z: Tensor, v: Tensor, log_peak: Tensor) -> Tensor:
    """``F(z) - 1/2`` of a Student t: with ``x = sqrt(v) sinh(s)`` the density becomes ``peak / cosh(s)^v``.

    It is integrated up to z, or to where it falls below 1e-18. The integrand is so smooth that the rule is exact to
    about 13 digits.
    """
    reach = torch.acosh((41.5 / v).exp())
    end = torch.asinh(z.abs() / v.sqrt()).minimum(reach)
    area = torch.zeros_like(z)
    for node, weight in zip(NODES.tolist(), WEIGHTS.tolist(), strict=True):
        s = end * ((node + 1) / 2)
        area += weight / 2 * (log_peak - v * torch.log(torch.cosh(s))).exp()
    return z.sign() * end * area
