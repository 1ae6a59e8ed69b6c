"""Split conformal prediction (Vovk et al. 2005): the factor that covers fresh rows, and prediction sets of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from splitpoint.errors import DataError, SettingsError
from splitpoint.groups import Owners

SetScore = Literal["lac", "aps", "raps"]
SET_SCORES: tuple[SetScore, ...] = get_args(SetScore)
"""Scores of classes that sets are made of: least ambiguous, adaptive, and regularised adaptive."""

FREE_CLASSES, PENALTY = 5, 0.01
"""RAPS: classes of a set that cost nothing, and what every further one adds to the score."""

KEPT = 9_999
"""Most calibration scores that are kept: quantiles at levels of up to four decimals are those of all of them."""

KEPT_GROUPS = 199
"""Most groups that stand for themselves among calibration scores: of more, levels are rounded up to a 200th."""

ROUNDING = 1e-6
"""Relative difference of probabilities that is rounding: the same row in another batch has the same set."""


def rank_of(count: int, level: float) -> int:
    """``ceil((n + 1) level)``: of n scores, that of this rank is at least a fresh one with a probability of `level`."""
    return math.ceil((count + 1) * level - 1e-9)


def rows_for(level: float) -> int:
    """How many rows it takes at least for a quantile at the level, ``level / (1 - level)``."""
    return math.ceil(level / (1 - level) - 1e-9)


def spread_out(ordered: Tensor, most: int) -> Tensor:
    """Of n ascending scores on the last axis those of rank ``ceil(i (n + 1) / (most + 1))``, i = 1 to `most`, or all.

    Quantiles of these are never below those of all n.
    """
    rows = ordered.shape[-1]
    if rows <= most:
        return ordered
    ranks = [-(-place * (rows + 1) // (most + 1)) for place in range(1, most + 1)]
    return ordered[..., torch.tensor(ranks, device=ordered.device) - 1]


def conformal_factor(
    ratio: Tensor, level: float, counted: str = "residuals on each side", owners: Owners | None = None
) -> Tensor:
    """Smallest factor that covers a share `level` of fresh rows: the ``ceil((n + 1) level)``-th smallest ratio.

    Args:
        ratio: (n,) residual size over predicted half-width on calibration rows of one side.
        level: share of that side to cover, in (0, 1).
        counted: what the ratios are, for the message when there are too few.
        owners: the groups that the rows belong to; None where each stands for itself.

    For exchangeable rows, ``P(size <= factor * half-width) >= level`` (split conformal prediction). Of rows in groups
    see `group_factor`.
    """
    count = len(ratio) if owners is None else len(owners.groups.unique())
    rank = rank_of(count, level)
    if rank > count:
        among = "" if owners is None else "groups (images, sequences) of "
        raise DataError(
            f"Expected at least {rows_for(level)} calibration {among}{counted} for conformal prediction at level "
            f"{level}, but got {count}; give more calibration data, a lower level or another method."
        )
    return ratio.kthvalue(rank).values if owners is None else group_factor(ratio, level, owners)


def group_factor(ratio: Tensor, level: float, owners: Owners) -> Tensor:
    """Smallest factor that covers a share `level` of the rows of a fresh group, on average over groups.

    With ``w_i`` the part of group i that lies on this side and ``m_i(f)`` the part of it with a ratio above f, the risk
    is ``L_i(f) = m_i(f) - (1 - level) w_i``, which falls as f grows. The factor is the smallest with

        ``sum_i L_i(f) + max_i L_i(f) <= 0``,

    conformal risk control (Angelopoulos et al. 2022) where a fresh group has at most the risk of the worst of those
    seen: then ``E[m(f)] <= (1 - level) E[w]`` for groups that are exchangeable, whatever their rows have in common.
    Both sides together leave at most a share ``1 - level`` of a fresh group outside, on average. With one row a group
    it is the ``ceil((n + 1) level)``-th smallest ratio.

    Args:
        ratio: (n,) residual size over predicted half-width on calibration rows of one side.
        level: share of that side to cover, in (0, 1).
        owners: the groups that the rows belong to, and what every row counts in its own.
    """
    places, order = owners.groups.unique(return_inverse=True)[1], ratio.argsort()
    ordered, own = places[order], owners.shares[order]
    parts = ratio.new_zeros(int(places.max()) + 1, dtype=torch.float64)
    allowed = (1 - level) * parts.index_add(0, ordered, own)
    low, high = 0, len(ratio) - 1
    while low < high:
        middle = (low + high) // 2
        risk = parts.index_add(0, ordered[middle + 1 :], own[middle + 1 :]) - allowed
        low, high = (low, middle) if float(risk.sum() + risk.max()) <= 1e-9 else (middle + 1, high)
    return ratio[order[low]]


PIECE = 2**20
"""Numbers of rows of classes that are worked on at a time: few enough for all of their kinds to stay in cache."""


def pieces(rows: Tensor) -> list[slice]:
    """Slices of rows (n, K, ...) of at most `PIECE` numbers each, or of one row."""
    size = max(1, PIECE // max(rows[0].numel(), 1)) if len(rows) else 1
    return [slice(start, start + size) for start in range(0, max(len(rows), 1), size)]


# Scores of classes: the higher, the less a class belongs to the set


def class_scores(
    probs: Tensor, score: SetScore, axis: int = 1, free: int = FREE_CLASSES, penalty: float = PENALTY
) -> Tensor:
    """Score of every class in float64, shaped like the probabilities (N, K, ...) with the classes on `axis`.

    - "lac", least ambiguous (Sadinle et al. 2019): ``1 - p_k``.
    - "aps", adaptive (Romano et al. 2020), without randomisation: ``sum of p_j over p_j > p_k``, what the more
      probable classes hold already. That of the most probable class is 0, so it is always in the set.
    - "raps", regularised (Angelopoulos et al. 2021): the same plus ``penalty * max(0, m_k - free)``, with `m_k` the
      number of more probable classes.

    One is subtracted from all of them, so that ``-p_k`` and minus the sum of what is at most as probable are left,
    which rounding does not make equal where a network is sure. Classes that are equally probable have one score.

    >>> class_scores(torch.tensor([[0.5, 0.125, 0.375]]), "aps") + 1
    tensor([[0.0000, 0.8750, 0.5000]], dtype=torch.float64)
    """
    classes = probs.movedim(axis, -1).double()
    if score == "lac":
        return -classes.movedim(-1, axis)
    ordered, order = (classes / classes.sum(-1, keepdim=True)).sort(dim=-1, descending=True, stable=True)
    found = -ordered.flip(-1).cumsum(-1).flip(-1)
    if score == "raps":
        before = torch.arange(classes.shape[-1], device=probs.device)
        found = found + penalty * (before - free).clamp(min=0)
    tied = torch.zeros_like(found, dtype=torch.bool)
    tied[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    found = found.masked_fill(tied, -torch.inf).cummax(-1).values
    return torch.zeros_like(found).scatter(-1, order, found).movedim(-1, axis)


def label_scores(
    probs: Tensor, label: Tensor, score: SetScore, free: int = FREE_CLASSES, penalty: float = PENALTY
) -> Tensor:
    """Scores (n,) of the labels of calibration rows with probabilities (n, K): those of their classes.

    Only "raps" asks for more: as in MAPIE, a label counts among the classes that cost, ``penalty * max(0, m + 1 -
    free)``, though a set may grow by the class that reaches the quantile. That errs on the side of larger sets.
    """
    index = label[:, None]
    found = class_scores(probs, score, 1, free, penalty).gather(1, index)[:, 0]
    if score == "raps":
        found = found + penalty * ((probs > probs.gather(1, index)).sum(1) >= free)
    return found


def calibration_scores(probs: Tensor, label: Tensor, groups: Tensor | None = None) -> Tensor:
    """Ascending scores (3, m) of calibration rows for every one of `SET_SCORES`; see `Conformity`.

    Of more than `KEPT` rows those of rank ``ceil(i (n + 1) / (KEPT + 1))``, i = 1 to KEPT, are kept. The quantile of
    these is that of all rows at levels of up to four decimals, and never below it. In place of the rows of g groups
    stand the g scores that cover a share ``i / (g + 1)`` of the rows of a fresh group, i = 1 to g (see `group_factor`),
    so that sets count groups; of more than `KEPT_GROUPS`, as if there were so many.

    Args:
        probs: (n, K) calibrated probabilities.
        label: (n,) class indices.
        groups: (n,) numbers of the groups that the rows belong to; None where each stands for itself.
    """
    parts = pieces(probs)
    found = [torch.cat([label_scores(probs[own], label[own], score) for own in parts]) for score in SET_SCORES]
    if groups is not None:
        return _group_scores(found, groups)
    ordered = torch.stack([scores.sort().values for scores in found])
    return spread_out(ordered, KEPT).float()


def _group_scores(scores: Sequence[Tensor], groups: Tensor) -> Tensor:
    owners = Owners.of(groups)
    count = min(len(groups.unique()), KEPT_GROUPS)
    shares = [place / (count + 1) for place in range(1, count + 1)]
    return torch.stack([torch.stack([group_factor(own, share, owners) for share in shares]) for own in scores]).float()


def check_set_score(score: str, name: str) -> None:
    """Refuse a setting `name` that is none of `SET_SCORES`."""
    if score not in SET_SCORES:
        raise SettingsError(f"Expected {name} to be one of {SET_SCORES}, but got {score!r}.")


@dataclass(frozen=True, eq=False)
class Conformity:
    """What prediction sets are made of: scores of the true classes of calibration rows.

    Attributes:
        scores: (3, m) ascending, for every one of `SET_SCORES`; see `calibration_scores`.
        axis: where predictions have the classes, 1 or -1.
        score: which of the scores serves unless another is asked for.
        level: the level at which sets are judged by metrics.
    """

    scores: Tensor
    axis: int = 1
    score: SetScore = "lac"
    level: float = 0.95

    @property
    def enough(self) -> bool:
        """Whether there are enough calibration rows for sets at `level`."""
        return rank_of(self.scores.shape[1], self.level) <= self.scores.shape[1]

    def sets(self, probs: Tensor, level: float, score: SetScore | None = None) -> Tensor:
        """Classes whose score is at most the ``ceil((n + 1) level)``-th smallest of n calibration rows, as `probs`."""
        chosen = self.score if score is None else score
        check_set_score(chosen, "method")
        if not 0 < level < 1:
            raise SettingsError(f"Expected a level in (0, 1), but got {level}.")
        own = self.scores[SET_SCORES.index(chosen)].to(probs.device, torch.float64)
        radius = conformal_factor(own, level, "rows")
        return class_scores(probs, chosen, self.axis) <= radius + ROUNDING * radius.abs()
