"""Numbers with error bars at any level: shares, means, and differences from what chance alone would give.

Entries of one row (its outputs, the pixels of its image) are not independent. All error bars count rows: the influence
of every entry on a number is summed over the row it belongs to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from splitpoint.metrics.ranking import average_ranks, comparable

SHOWN = 0.05
"""Error bars that are shown miss the truth this often, each by itself."""

ROUNDS, TINY = 300, 1e-300
"""Most terms of a continued fraction, and what stands for zero in it."""

HALVINGS = 60


class Estimate(ABC):
    """A number that was measured, and how far it may be off."""

    value: float

    @abstractmethod
    def bounds(self, alpha: float) -> tuple[float, float]:
        """An interval that misses the truth with probability `alpha` at most (about so for means)."""

    @property
    def shown(self) -> tuple[float, float]:
        """The 95% interval."""
        return self.bounds(SHOWN)


@dataclass(frozen=True)
class Share(Estimate):
    """`hits` of `of` trials, either of which may be a fraction where trials hang together.

    Bounds are those of Clopper and Pearson (1934), which are never too narrow.
    """

    hits: float
    of: float

    @property
    def value(self) -> float:  # type: ignore[override]
        """The share; NaN without trials."""
        return self.hits / self.of if self.of else math.nan

    def bounds(self, alpha: float) -> tuple[float, float]:
        """See `Estimate`.

        >>> tuple(round(bound, 4) for bound in Share(8, 10).bounds(0.05))
        (0.4439, 0.9748)
        """
        if not self.of:
            return 0.0, 1.0
        missed = max(self.of - self.hits, 0.0)
        low = beta_quantile(alpha / 2, self.hits, missed + 1) if self.hits > 0 else 0.0
        high = beta_quantile(1 - alpha / 2, self.hits + 1, missed) if missed > 0 else 1.0
        return low, high


@dataclass(frozen=True)
class Mean(Estimate):
    """A number with a standard error of so many degrees of freedom; bounds are those of Student's t, inside `range`."""

    value: float
    error: float
    freedom: float = math.inf
    range: tuple[float, float] = (-math.inf, math.inf)

    def bounds(self, alpha: float) -> tuple[float, float]:
        """See `Estimate`.

        >>> tuple(round(bound, 3) for bound in Mean(0.0, 1.0, 10).bounds(0.05))
        (-2.228, 2.228)
        """
        reach = student_quantile(1 - alpha / 2, self.freedom) * self.error
        return max(self.value - reach, self.range[0]), min(self.value + reach, self.range[1])


@dataclass(frozen=True)
class Times(Estimate):
    """A ratio whose logarithm was measured."""

    log: Mean

    @property
    def value(self) -> float:  # type: ignore[override]
        """The ratio."""
        return _exp(self.log.value)

    def bounds(self, alpha: float) -> tuple[float, float]:
        """See `Estimate`."""
        low, high = self.log.bounds(alpha)
        return _exp(low), _exp(high)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True, eq=False)
class Excess(Estimate):
    """What a number has above its mean over `draws` (S,) of what chance alone would give."""

    found: float
    draws: Tensor

    @property
    def floor(self) -> float:
        """The mean over the draws."""
        return float(self.draws.mean())

    @property
    def value(self) -> float:  # type: ignore[override]
        """How far it is above."""
        return self.found - self.floor

    def bounds(self, alpha: float) -> tuple[float, float]:
        """See `Estimate`; the lower one is above zero where fewer than ``alpha / 2`` of the draws reach the number."""
        shares = torch.tensor([1 - alpha / 2, alpha / 2], dtype=self.draws.dtype)
        high, low = self.draws.quantile(shares).tolist()
        return self.value - (high - self.floor), self.value + (self.floor - low)


# From entries to estimates


def row_error(influence: Tensor, row: Tensor) -> Mean:
    """Standard error of a number from the influence (M,) of every entry on it, whose mean is 0; `row` (M,) counts rows.

    ``sqrt(sum_r (sum_{i in r} psi_i)^2) / M``, times ``sqrt(R / (R - 1))`` for R rows. The value is left at 0.
    """
    _, place = torch.unique(row, return_inverse=True)
    rows = int(place.max()) + 1 if len(place) else 0
    if rows < 2:
        return Mean(0.0, math.inf, 1)
    sums = influence.new_zeros(rows).index_add_(0, place, influence)
    error = float(sums.square().sum().sqrt()) / len(influence) * math.sqrt(rows / (rows - 1))
    return Mean(0.0, error, rows - 1)


def mean_of(values: Tensor, row: Tensor) -> Mean:
    """Mean of entries."""
    if not len(values):
        return Mean(math.nan, math.inf, 1)
    values = values.double()
    mean = values.mean()
    found = row_error(values - mean, row)
    return Mean(float(mean), found.error, found.freedom)


def share_of(hits: Tensor, row: Tensor) -> Share:
    """Share of entries, on as many trials as they are worth.

    Where the entries of a row hang together, so that the share varies ``d`` times as much over rows as over independent
    entries, M entries count as ``M / d``, but as no fewer than there are rows and as no more than there are entries.
    """
    entries = len(hits)
    if not entries:
        return Share(0.0, 0.0)
    share = float(hits.double().mean())
    rows = int(torch.unique(row).numel())
    worth = float(entries)
    if rows < entries:
        spread = row_error(hits.double() - share, row).error ** 2
        alone = share * (1 - share)
        worth = min(max(alone / spread, rows), entries) if spread > 0 and math.isfinite(spread) else float(rows)
    return Share(share * worth, worth)


def ratio_of(part: Tensor, whole: Tensor, row: Tensor) -> Mean:
    """Mean of `part` over the mean of `whole`, entry by entry from the same rows."""
    part, whole = part.double(), whole.double()
    ratio = float(part.mean() / whole.mean())
    found = row_error((part - ratio * whole) / whole.mean(), row)
    return Mean(ratio, found.error, found.freedom)


def auroc_influence(score: Tensor, positive: Tensor) -> Tensor:
    """Influence (M,) of every entry on the AUROC with which a score finds the `positive` ones.

    Source: DeLong, DeLong and Clarke-Pearson (1988); summed over rows it is the error of Obuchowski (1997).
    """
    score = comparable(score)
    ranks, found = average_ranks(score), torch.empty(len(score), dtype=torch.float64)
    counts = {kind: int((positive == kind).sum()) for kind in (True, False)}
    for kind, count in counts.items():
        own = positive == kind
        others = (ranks[own] - average_ranks(score[own])) / max(len(score) - count, 1)
        placed = others if kind else 1 - others
        found[own] = (placed - placed.mean()) * (len(score) / max(count, 1))
    return found


def spearman_influence(score: Tensor, other: Tensor) -> Tensor:
    """Influence (M,) of every entry on Spearman's rank correlation ``12 E[F(x) G(y)] - 3``.

    It is ``12 (F(x) G(y) + E[1{x' >= x} G(y')] + E[1{y' >= y} F(x')])``, centred.
    """
    one, two = (average_ranks(comparable(values)) / len(score) for values in (score, other))
    found = one * two + _above(one, two) + _above(two, one)
    return 12 * (found - found.mean())


def _above(by: Tensor, values: Tensor) -> Tensor:
    """For every entry the sum of the values of entries that are as high or higher, over M; ties count half."""
    _, group, count = torch.unique(by, return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(count)).index_add_(0, group, values)
    return ((sums.flip(0).cumsum(0).flip(0) - sums / 2) / len(by))[group]


def aurc_influence(score: Tensor, loss: Tensor) -> Tensor:
    """Influence (M,) of every entry on the area under the risk-coverage curve, ``E[-l log F(s)]``.

    With F the share of scores that are as low it is ``-l log F(s) - aurc + E l - E[l' 1{s' >= s} / F(s')]``.
    """
    _, group, count = torch.unique(comparable(score), return_inverse=True, return_counts=True)
    loss, last = loss.double(), count.cumsum(0)
    steps = 1 / torch.arange(1, len(loss) + 1, dtype=torch.float64)
    tails = steps.flip(0).cumsum(0).flip(0)  # sum of 1 / k for k from r to M
    starts = last - count
    weight = _group_means(tails, starts, last)[group]
    share = last.double() / len(loss)
    by_group: Tensor = share.new_zeros(len(count)).index_add_(0, group, loss) / share / len(loss)
    above = by_group.flip(0).cumsum(0).flip(0)[group]
    found = loss * weight
    influence: Tensor = found - found.mean() + loss.mean() - above
    return influence


def _group_means(values: Tensor, starts: Tensor, stops: Tensor) -> Tensor:
    """Mean of ``values[start:stop]`` for every pair."""
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
    return (sums[stops] - sums[starts]) / (stops - starts)


# Quantiles


def beta_share(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function ``I_x(a, b)``, by Lentz's continued fraction.

    >>> round(beta_share(0.3, 2, 5), 6)
    0.579825
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_share(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 1 / _kept(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, ROUNDS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d, c = 1 / _kept(1 + step * d), _kept(1 + step / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * fraction / a


def _kept(value: float) -> float:
    return value if abs(value) > TINY else TINY


@lru_cache(maxsize=4096)
def beta_quantile(share: float, a: float, b: float) -> float:
    """Where ``I_x(a, b)`` reaches a share."""
    return _bisected(lambda x: beta_share(x, a, b), share, 0.0, 1.0)


@lru_cache(maxsize=4096)
def student_quantile(share: float, freedom: float) -> float:
    """Quantile above one half of Student's t; of the normal distribution for infinitely many degrees of freedom.

    >>> round(student_quantile(0.975, 3), 4), round(student_quantile(0.975, float("inf")), 4)
    (3.1824, 1.96)
    """

    def below(t: float) -> float:
        if math.isinf(freedom) or freedom > 1e7:
            return 0.5 * math.erfc(-t / math.sqrt(2))
        return 1 - 0.5 * beta_share(freedom / (freedom + t * t), freedom / 2, 0.5)

    top = 1.0
    while below(top) < share and top < 1e12:
        top *= 2
    return _bisected(below, share, 0.0, top)


def _bisected(function: Callable[[float], float], share: float, low: float, high: float) -> float:
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < share else (low, middle)
    return (low + high) / 2
