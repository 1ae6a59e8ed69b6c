"""Canonical answers (see `tasks`) that several rivals give: normal laws, quantiles, mixtures, constant widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from splitpoint.consistency import entropy
from splitpoint.errors import TrainingError
from splitpoint.tasks import Answer, ClassAnswer, Levels, RegressionAnswer


def check_answer(answer: Answer, what: str) -> None:
    """A TrainingError unless what a fitted method says of its own training rows are numbers."""
    for own in fields(answer):
        value = getattr(answer, own.name)
        if isinstance(value, Tensor) and not bool(value.isfinite().all()):
            raise TrainingError(
                f"Expected {what} to answer its own training rows with numbers, but its '{own.name}' has NaN or "
                "infinity; bring inputs and targets to a usual scale, lower the learning rate or use another method."
            )


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


def constant_answer(output: Tensor, quantiles: Tensor, levels: Levels, epistemic: Tensor) -> RegressionAnswer:
    """Outputs (N, D, ...) with bounds at constant distances (D, 2, L)."""
    wide = quantiles.reshape(len(quantiles), *[1] * (output.dim() - 2), 2, len(levels)).to(output)
    lowers = output.unsqueeze(-1) + wide[..., 0, :].clamp(max=0)
    uppers = output.unsqueeze(-1) + wide[..., 1, :].clamp(min=0)
    width = uppers[..., -1] - lowers[..., -1]
    return RegressionAnswer(
        levels=levels,
        mean=output,
        lowers=lowers,
        uppers=uppers,
        aleatoric=width,
        epistemic=epistemic,
        total=width + epistemic,
    )
