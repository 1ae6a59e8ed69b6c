"""What a baseline says about a batch, in canonical form, and how that becomes a `Prediction`.

Canonical values are (N, D) or (N, D, P) for regression and (N, K) or (N, K, P) for classes, P positions; see `layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint.consistency import entropy
from splitpoint.layout import Layout
from splitpoint.prediction import ClassificationPrediction, Prediction, Reference, RegressionPrediction

Levels = tuple[float, ...]


@dataclass(frozen=True)
class RegressionAnswer:
    """Canonical fields of a `RegressionPrediction`; `lowers` and `uppers` carry the levels on a last axis."""

    levels: Levels
    mean: Tensor
    lowers: Tensor
    uppers: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor
    scale: Tensor | None = None
    freedom: Tensor | None = None

    def prediction(self, layout: Layout, like: Tensor, reference: Reference | None) -> Prediction:
        """The same in the shape of the output `like`."""

        def shaped(values: Tensor) -> Tensor:
            return layout.restore(values, like)

        def bounds(values: Tensor) -> Tensor:
            return torch.stack([shaped(value) for value in values.unbind(-1)], -1)

        return RegressionPrediction(
            mean=shaped(self.mean),
            levels=self.levels,
            lowers=bounds(self.lowers),
            uppers=bounds(self.uppers),
            aleatoric=shaped(self.aleatoric),
            epistemic=shaped(self.epistemic),
            total=shaped(self.total),
            reference=reference,
            scale=None if self.scale is None else shaped(self.scale),
            freedom=None if self.freedom is None else shaped(self.freedom),
        )


@dataclass(frozen=True)
class ClassAnswer:
    """Canonical fields of a `ClassificationPrediction`; scores (N,) or (N, P) have no class axis.

    `logits` are those whose softmax `probs` are, where there are any: they tell apart what rounding makes 0 and 1.
    """

    probs: Tensor
    base_probs: Tensor
    epistemic: Tensor
    total: Tensor
    sets: Tensor | None = None
    logits: Tensor | None = None

    @property
    def scaled(self) -> Tensor:
        """Logits of the probabilities, their logarithms where there are no others."""
        if self.logits is not None:
            return self.logits
        return self.probs.clamp(min=torch.finfo(self.probs.dtype).tiny).log()

    def prediction(self, layout: Layout, like: Tensor, reference: Reference | None) -> Prediction:
        """The same in the shape of the output `like`."""
        return ClassificationPrediction(
            probs=layout.restore_classes(self.probs, like),
            base_probs=layout.restore_classes(self.base_probs, like),
            label=layout.restore_scores(self.probs.argmax(1), like),
            aleatoric=layout.restore_scores(entropy(self.probs, 1), like),
            epistemic=layout.restore_scores(self.epistemic, like),
            total=layout.restore_scores(self.total, like),
            reference=reference,
            sets=None if self.sets is None else layout.restore_classes(self.sets, like),
        )


Answer = RegressionAnswer | ClassAnswer


def normal_answer(mean: Tensor, aleatoric: Tensor, epistemic: Tensor, levels: Levels) -> RegressionAnswer:
    """A normal predictive distribution with the two variances: bounds ``mean -+ z sqrt(aleatoric + epistemic)``."""
    total = aleatoric + epistemic
    scale = total.sqrt()
    half = scale.unsqueeze(-1) * normal_quantiles(levels, scale)
    return RegressionAnswer(
        levels=levels,
        mean=mean,
        lowers=mean.unsqueeze(-1) - half,
        uppers=mean.unsqueeze(-1) + half,
        aleatoric=aleatoric,
        epistemic=epistemic,
        total=total,
        scale=scale,
    )


def normal_quantiles(levels: Levels, like: Tensor) -> Tensor:
    """``z`` with ``P(|Z| <= z) = level`` for a standard normal Z, one for each level.

    >>> normal_quantiles((0.95,), torch.zeros(()))
    tensor([1.9600])
    """
    central = torch.tensor([(1 + level) / 2 for level in levels], dtype=torch.float64)
    found: Tensor = torch.special.ndtri(central)
    return found.to(like)


def central_quantiles(levels: Levels) -> list[float]:
    """Quantile levels of the median and of both bounds of every level, ascending.

    >>> central_quantiles((0.5, 0.9))
    [0.05, 0.25, 0.5, 0.75, 0.95]
    """
    tails = [round((1 - level) / 2, 12) for level in levels]
    return sorted({0.5, *tails, *(1 - tail for tail in tails)})


def quantile_answer(
    quantiles: Tensor, levels: Levels, epistemic: Tensor, aleatoric: Tensor | None = None
) -> RegressionAnswer:
    """Median and bounds from predicted `central_quantiles` (Q, N, D, ...), put in order where they cross.

    The aleatoric part is the width at the highest level unless given.
    """
    ordered = quantiles.sort(0).values
    count = len(levels)
    lowers = ordered[:count].flip(0).movedim(0, -1)
    uppers = ordered[count + 1 :].movedim(0, -1)
    width = uppers[..., -1] - lowers[..., -1]
    spread = width if aleatoric is None else aleatoric
    return RegressionAnswer(
        levels=levels,
        mean=ordered[count],
        lowers=lowers,
        uppers=uppers,
        aleatoric=spread,
        epistemic=epistemic,
        total=spread + epistemic,
    )


def softmax_answer(logits: Tensor, base_logits: Tensor | None = None) -> ClassAnswer:
    """Softmax of `logits`: the probability that the top class is wrong, and the entropy, as the two scores."""
    probs = logits.softmax(1)
    base = probs if base_logits is None else base_logits.softmax(1)
    return ClassAnswer(probs, base, epistemic=1 - probs.amax(1), total=entropy(probs, 1), logits=logits)


def mixture_answer(members: Tensor) -> ClassAnswer:
    """Mean of member probabilities (M, N, K, ...); epistemic is the mutual information, total the predictive entropy.

    ``MI = H(mean_m p_m) - mean_m H(p_m)`` (Lakshminarayanan et al. 2017; Depeweg et al. 2018).
    """
    probs = members.mean(0)
    whole = entropy(probs, 1)
    within = torch.stack([entropy(member, 1) for member in members]).mean(0)
    return ClassAnswer(probs, probs, epistemic=(whole - within).clamp(min=0), total=whole)


def mixture_of_normals(means: Sequence[Tensor] | Tensor, variances: Tensor, levels: Levels) -> RegressionAnswer:
    """Moments of a mixture of normals (M, N, D, ...): mean variance is aleatoric, variance of the means epistemic."""
    stacked = means if isinstance(means, Tensor) else torch.stack(list(means))
    return normal_answer(stacked.mean(0), variances.mean(0), stacked.var(0, correction=0), levels)
