"""What turns scores into promises: conformal factors, the in-distribution reference, temperatures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.checks import Check, warn_of
from splitpoint.conformal import conformal_factor as conformal_factor
from splitpoint.conformal import pieces, rank_of, rows_for, spread_out
from splitpoint.consistency import entropy
from splitpoint.errors import DataError, SettingsError
from splitpoint.metrics import ece
from splitpoint.operators import softplus
from splitpoint.prediction import Reference, channel_order
from splitpoint.tasks import ClassAnswer

BEND = 3.0
"""Deviations beyond which surprise grows in proportion, so that one piece of evidence cannot drown the others."""

GRID = 999
"""Most in-distribution scores that are kept: percentiles are exact to a tenth of a percent."""

SMALLEST, LARGEST = 0.01, 100.0
POINTS, ROUNDS = 41, 6
PRIOR_ROWS = 5
ECE_GRID = [step / 10 for step in range(1, 101)]
"""Temperatures that the paper searches: 0.1 to 10 in steps of 0.1."""


def reference(scores: Sequence[Tensor], shape: tuple[int, ...], quantile: float, counted: str = "rows") -> Reference:
    """In-distribution reference of scores of support; later scores above the threshold will be flagged.

    The threshold is the ``ceil((n + 1) quantile)``-th smallest of n scores: a score that is exchangeable with them
    exceeds it with a probability of at most ``1 - quantile``, on average over such references (split conformal
    prediction, Vovk et al. 2005). The plain quantile has more false alarms than that, .09 in place of .05 with 20 rows.

    Args:
        scores: (N, ...) scores of in-distribution rows, batch by batch.
        shape: channel shape, see `Reference`.
        quantile: share of in-distribution scores that stay unflagged, at least.
        counted: what the scores are of, for the message when there are too few.
    """
    if isinstance(quantile, bool) or not isinstance(quantile, int | float) or not 0 < quantile < 1:
        raise SettingsError(f"Expected a quantile in (0, 1), but got {quantile!r}.")
    channels = math.prod(shape)
    flat = [score.permute(channel_order(shape, score.dim())).reshape(channels, -1) for score in scores]
    ordered = torch.cat(flat, 1).sort(1).values
    if not torch.isfinite(ordered).all():
        raise DataError("Expected finite support scores to set the threshold on, but got NaN or inf; check the data.")
    count = ordered.shape[1]
    rank = rank_of(count, quantile)
    if rank > count:
        raise DataError(
            f"Expected at least {rows_for(quantile)} {counted} to set a threshold at quantile {quantile:g}, but got "
            f"{count}; give more, or a quantile of at most {count / (count + 1):.3g}."
        )
    threshold = ordered[:, rank - 1].clone()
    return Reference(spread_out(ordered, GRID).reshape(*shape, -1), threshold.reshape(shape))


def image_reference(scores: Sequence[Tensor], quantile: float) -> Reference:
    """The same of scores (N,) of whole images; of too few the largest one is the threshold, with a warning.

    They come along with the scores of pixels, of which there may be enough.
    """
    count = sum(map(len, scores))
    if count and 0 < quantile < 1 and rank_of(count, quantile) > count:
        advice = (
            f"a threshold at quantile {quantile:g} takes {rows_for(quantile)} images, so that whole images are flagged "
            f"above the largest score of these {count}, which 1 of {count + 1} ordinary ones exceeds; give more images."
        )
        warn_of([Check("images", count, "warn", advice)])
        quantile = count / (count + 1)
    return reference(scores, (), quantile, "images")


def quantiles(ordered: Tensor, shares: Tensor) -> Tensor:
    """Linear-interpolation quantiles of sorted rows; unlike torch.quantile without a limit on their length."""
    position = shares * (ordered.shape[1] - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=ordered.shape[1] - 1)
    part = (position - low).to(ordered.dtype)
    return torch.lerp(ordered[:, low], ordered[:, high], part.expand(len(ordered), -1))


def surprise(z: Tensor) -> Tensor:
    """``softplus(z)^2`` up to 9, in proportion to z beyond: rises everywhere, hardly at all in the lower tail."""
    s = softplus(z)
    return torch.where(s <= BEND, s.square(), BEND * (2 * s - BEND))


# One factor for all logits (Guo et al. 2017)


def fit_temperature(logits: Tensor, label: Tensor, by: Literal["nll", "ece"] = "nll") -> Tensor:
    """The temperature ``T`` of ``softmax(logits / T)`` that fits held-out labels best.

    Args:
        logits: (n, K).
        label: (n,) class indices.
        by: "nll" finds the smallest log loss in [0.01, 100] to within 0.01%, by a grid that closes in on the minimum
            of a function that has only one; "ece" takes the best of the paper's grid, 0.1 to 10.

    >>> logits = torch.tensor([[4.0, 0.0]]).repeat(4000, 1)
    >>> t = fit_temperature(logits, torch.tensor([0, 0, 0, 1]).repeat(1000))
    >>> round((4 / t).item(), 3)  # the log-odds of 3 : 1
    1.099
    """
    if by == "ece":
        errors = [ece((logits / t).softmax(1), label) for t in ECE_GRID]
        return logits.new_tensor(ECE_GRID[errors.index(min(errors))])
    low, high = (torch.tensor(end, dtype=torch.float64).log() for end in (SMALLEST, LARGEST))
    grid = torch.linspace(float(low), float(high), POINTS, dtype=torch.float64)
    for _ in range(ROUNDS):
        losses = [float(F.cross_entropy(logits.double() / float(t.exp()), label)) for t in grid]
        best = losses.index(min(losses))
        ends = grid[max(best - 1, 0)], grid[min(best + 1, POINTS - 1)]
        middle = grid[best]
        grid = torch.linspace(float(ends[0]), float(ends[1]), POINTS, dtype=torch.float64)
    return middle.exp().to(logits)


def tempered(answer: ClassAnswer, temperature: Tensor) -> ClassAnswer:
    """The answer with probabilities ``p^(1/T)``, normalised; scores that are functions of them follow.

    For a softmax this is ``softmax(logits / T)``. The epistemic score is the method's own and stays.
    """
    logits = answer.scaled / temperature
    probs = logits.softmax(1)
    return replace(answer, probs=probs, total=entropy(probs, 1), logits=logits)


def probable_factor(logits: Tensor, label: Tensor) -> Tensor:
    """The most probable factor ``a > 0`` of ``softmax(a * logits)``: the inverse of a temperature.

    A standard normal prior on ``log a``, worth five rows, keeps it in hand where few rows are separable.

    >>> logits = torch.tensor([[4.0, 0.0]]).repeat(4000, 1)
    >>> a = probable_factor(logits, torch.tensor([0, 0, 0, 1]).repeat(1000))
    >>> round((4 * a).item(), 1)  # the log-odds of 3 : 1
    1.1
    """
    log_factor = logits.new_zeros((), requires_grad=True)
    rows = max(len(label), 1)

    def objective() -> Iterator[Tensor]:
        price = PRIOR_ROWS * log_factor.square() / (2 * rows)
        return log_losses(logits, label, lambda own: log_factor.exp() * logits[own], price)

    minimise([log_factor], objective)
    return log_factor.detach().exp()


def log_losses(logits: Tensor, label: Tensor, corrected: Callable[[slice], Tensor], price: Tensor) -> Iterator[Tensor]:
    """Parts of the mean log loss of rows plus a price: of many classes, a few rows a part, so that they stay in cache.

    Args:
        logits: (n, K), for their shape.
        label: (n,) class indices.
        corrected: logits (R, K) of some of the rows.
        price: scalar, a term of the first part.
    """
    for number, own in enumerate(pieces(logits)):
        loss = F.cross_entropy(corrected(own), label[own]) * (len(label[own]) / max(len(label), 1))
        yield loss if number else loss + price


def minimise(
    parameters: list[Tensor], objective: Callable[[], Iterable[Tensor]], steps: int = 60, change: float = 1e-9
) -> None:
    """Move the parameters to where a smooth objective, the sum of some parts, is smallest, by L-BFGS.

    At most so many `steps`, and none once the objective or the parameters change by less than `change`.
    """
    optimiser = torch.optim.LBFGS(parameters, max_iter=steps, tolerance_change=change, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        total = 0.0
        for part in objective():
            part.backward()
            total += float(part.detach())
        return total

    with torch.enable_grad():
        optimiser.step(closure)
