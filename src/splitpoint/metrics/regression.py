"""Quality of point predictions, of intervals and of whole distributions. NaN targets do not count.

Intervals are judged at the highest fitted level unless another is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splitpoint.errors import DataError
from splitpoint.metrics.given import Given, beside, predicted, share, whole_number
from splitpoint.metrics.ranking import check_bins, equal_parts, sorted_by, spearman
from splitpoint.prediction import RegressionPrediction, aligned

# Point predictions


def _errors(prediction: RegressionPrediction, target: Given) -> Tensor:
    """Signed errors of the mean in float64, in its shape; NaN where there is no target."""
    mean = predicted(prediction, RegressionPrediction).mean
    return mean.double() - _targets(mean, target).double()


def _targets(mean: Tensor, target: Given) -> Tensor:
    """Targets in the shape of the mean and beside it."""
    return aligned(mean, beside(mean, target, "targets"))


def _observed_errors(prediction: RegressionPrediction, target: Given) -> Tensor:
    errors = _errors(prediction, target)
    return errors[~_targets(prediction.mean, target).isnan()]


def rmse(prediction: RegressionPrediction, target: Given) -> float:
    """Root mean squared error of the mean (E34)."""
    return float(_observed_errors(prediction, target).square().mean().sqrt())


def mae(prediction: RegressionPrediction, target: Given) -> float:
    """Mean absolute error of the mean."""
    return float(_observed_errors(prediction, target).abs().mean())


def spearman_epistemic(prediction: RegressionPrediction, target: Given) -> float:
    """Rank correlation of ``|mean - y|`` with the epistemic score (E39, as the paper defines it)."""
    errors = _errors(prediction, target).abs()
    return spearman(prediction.epistemic, errors)


def spearman_total(prediction: RegressionPrediction, target: Given) -> float:
    """Rank correlation of ``|mean - y|`` with the total score (E39, as the authors' code computes it)."""
    errors = _errors(prediction, target).abs()
    return spearman(prediction.total, errors)


# Intervals


@dataclass(frozen=True, eq=False)
class _Observed:
    """Entries that have a target, flat and in float64."""

    y: Tensor
    mean: Tensor
    low: Tensor
    high: Tensor
    level: float

    @property
    def inside(self) -> Tensor:
        return (self.low <= self.y) & (self.y <= self.high)

    @property
    def width(self) -> Tensor:
        return self.high - self.low


def _observed(prediction: RegressionPrediction, target: Given, level: float | None) -> _Observed:
    target = _targets(predicted(prediction, RegressionPrediction).mean, target)
    seen = ~target.isnan()
    level = prediction.levels[-1] if level is None else share(level, "a level")
    parts = (target, prediction.mean, *prediction.interval(level))
    y, mean, low, high = (part[seen].double() for part in parts)
    return _Observed(y, mean, low, high, level)


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def picp(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Share of targets inside the interval (prediction interval coverage probability)."""
    return _share(_observed(prediction, target, level).inside)


def picp_up(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Share of targets above the mean that stay below the upper bound; NaN when there is none."""
    seen = _observed(prediction, target, level)
    return _share((seen.y <= seen.high)[seen.y > seen.mean])


def picp_down(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Share of targets below the mean that stay above the lower bound; NaN when there is none."""
    seen = _observed(prediction, target, level)
    return _share((seen.y >= seen.low)[seen.y < seen.mean])


def piece(prediction: RegressionPrediction, target: Given, bins: int = 10, *, level: float | None = None) -> float:
    """Coverage error over bins of interval width, ``sum_m |B_m|/N |picp(B_m) - level|`` (E35).

    The bins hold equally many rows, from the narrowest intervals to the widest, so that every row counts. There are at
    most `bins` of them, and fewer where rows are few: a bin of fewer than ``1 / (1 - level)`` rows could not come near
    its level. Rows of equal width share their mean coverage, so that their order does not matter.
    """
    check_bins(bins)
    seen = _observed(prediction, target, level)
    rows = len(seen.y)
    parts = max(1, min(bins, int(rows * (1 - seen.level) + 1e-9)))
    gap = sorted_by(seen.width, seen.inside) - seen.level
    part = equal_parts(rows, parts, gap.device)
    return float(gap.new_zeros(parts).index_add_(0, part, gap).abs().sum() / rows) if rows else math.nan


def piece_authors(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Coverage error over bins of interval width as the authors' published code computes it, for comparison.

    Ten bins of equal width ``[edge, next edge)`` from the narrowest to the widest interval: the last one is open too,
    so that the widest interval is never counted, though it stays in ``N``. Where all intervals have the same width it
    is ``|picp - 1|``, whatever the level. NaN where a bound is NaN. Prefer `piece`.
    """
    seen = _observed(prediction, target, level)
    if not len(seen.y) or seen.width.isnan().any():
        return math.nan
    low, high = seen.width.min(), seen.width.max()
    if low == high:
        return abs(_share(seen.inside) - 1.0)
    edges = low + torch.arange(1, 10, device=low.device) * ((high - low) / 10)
    gap = torch.where(seen.width < high, seen.inside.double() - seen.level, 0.0)
    part = torch.bucketize(seen.width, edges, right=True)
    return float(gap.new_zeros(10).index_add_(0, part, gap).abs().sum() / len(gap))


def piece_floor(rows: int, level: float) -> float:
    """Coverage error that chance alone leaves, ``E|Binomial(rows, level) / rows - level|``.

    It is what `piece_plus` and `piece_minus` come to on average for perfect bounds with `rows` targets on the side, and
    `piece` for each bin of that many rows. NaN without rows.

    >>> round(piece_floor(25, 0.95), 3)
    0.035
    """
    rows, level = whole_number(rows, "rows", 0), share(level, "a level")
    if not rows:
        return math.nan
    hits = torch.arange(rows + 1, dtype=torch.float64)
    ways = math.lgamma(rows + 1) - torch.lgamma(hits + 1) - torch.lgamma(rows - hits + 1)
    mass = (ways + hits * math.log(level) + (rows - hits) * math.log1p(-level)).exp()
    return float((mass * (hits / rows - level).abs()).sum())


def piece_plus(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Coverage error of the upper side, ``|picp_up - level|`` (E36)."""
    return abs(picp_up(prediction, target, level=level) - (prediction.levels[-1] if level is None else level))


def piece_minus(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Coverage error of the lower side, ``|picp_down - level|`` (E36)."""
    return abs(picp_down(prediction, target, level=level) - (prediction.levels[-1] if level is None else level))


def piece_floor_plus(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """`piece_floor` of as many rows as there are targets above the mean; NaN when there is none."""
    seen = _observed(prediction, target, level)
    return piece_floor(int((seen.y > seen.mean).sum()), seen.level)


def piece_floor_minus(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """`piece_floor` of as many rows as there are targets below the mean; NaN when there is none."""
    seen = _observed(prediction, target, level)
    return piece_floor(int((seen.y < seen.mean).sum()), seen.level)


def mpiw(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Mean width of the interval where there is a target."""
    return float(_observed(prediction, target, level).width.mean())


def winkler(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Winkler (interval) score: width plus ``2 / alpha`` times the distance of a target outside (E37)."""
    seen = _observed(prediction, target, level)
    missed = torch.relu(seen.low - seen.y) + torch.relu(seen.y - seen.high)
    return float((seen.width + 2 / (1 - seen.level) * missed).mean())


def pinball(prediction: RegressionPrediction, target: Given, *, level: float | None = None) -> float:
    """Mean pinball loss of both bounds as quantiles, averaged over all fitted levels, or at one `level`.

    The bounds at a level count as the central quantiles ``t = (1 - level) / 2`` and ``(1 + level) / 2``, with the loss
    ``max(t (y - q), (t - 1)(y - q))``. At one level it is ``(1 - level) / 4`` times the `winkler` score.
    """
    losses = []
    for fitted in predicted(prediction, RegressionPrediction).levels if level is None else (share(level, "a level"),):
        seen = _observed(prediction, target, fitted)
        for quantile, bound in (((1 - fitted) / 2, seen.low), ((1 + fitted) / 2, seen.high)):
            above = seen.y - bound
            losses.append(torch.maximum(quantile * above, (quantile - 1) * above).mean())
    return float(torch.stack(losses).mean())


# Distributions

NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)
"""Gauss-Legendre rule on [-1, 1]."""

MOST_FREEDOM = 1e7
"""Degrees of freedom above which a Student t counts as one with this many: beyond, rounding hides the difference."""


def crps(prediction: RegressionPrediction, target: Given) -> float:
    """Continuous ranked probability score ``mean int (F(x) - 1[x >= y])^2 dx`` in closed form; units of the target.

    `F` is normal around `mean` with `scale`, or Student t where the prediction has `freedom`. The score of a Student t
    with one degree of freedom or less is infinite, since it has no mean.

    Source: Jordan, Krueger and Lerch (2019), Evaluating probabilistic forecasts with scoringRules.
    """
    scale = predicted(prediction, RegressionPrediction).scale
    if scale is None:
        raise DataError(
            "Expected a prediction with a distribution, but got one with intervals only; use pinball or winkler."
        )
    target = _targets(prediction.mean, target)
    seen = ~target.isnan()
    y, mean, spread = (part[seen].double() for part in (target, prediction.mean, scale))
    z = (y - mean) / spread
    if prediction.freedom is None:
        return float((spread * _normal_score(z)).mean())
    freedom = prediction.freedom.expand(seen.shape)[seen].double()
    return float((spread * _student_score(z, freedom)).mean())


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
