"""What turns scores into promises: conformal factors, the in-distribution reference, temperatures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.conformal import conformal_factor as conformal_factor
from splitpoint.consistency import entropy
from splitpoint.errors import DataError, SettingsError
from splitpoint.metrics import ece
from splitpoint.prediction import Reference, channel_order
from splitpoint.tasks import ClassAnswer

BEND = 3.0
"""Deviations beyond which surprise grows in proportion, so that one piece of evidence cannot drown the others."""

GRID = 1001
SMALLEST, LARGEST = 0.01, 100.0
POINTS, ROUNDS = 41, 6
PRIOR_ROWS = 5
ECE_GRID = [step / 10 for step in range(1, 101)]
"""Temperatures that the paper searches: 0.1 to 10 in steps of 0.1."""


def reference(scores: Sequence[Tensor], shape: tuple[int, ...], quantile: float) -> Reference:
    """In-distribution reference of scores of support; later scores above the `quantile` will be flagged.

    Args:
        scores: (N, ...) scores of in-distribution rows, batch by batch.
        shape: channel shape, see `Reference`.
        quantile: share of in-distribution scores that stay unflagged.
    """
    if not 0 < quantile < 1:
        raise SettingsError(f"Expected a quantile in (0, 1), but got {quantile}.")
    channels = math.prod(shape)
    flat = [score.permute(channel_order(shape, score.dim())).reshape(channels, -1) for score in scores]
    ordered = torch.cat(flat, 1).sort(1).values
    if not torch.isfinite(ordered).all():
        raise DataError("Expected finite support scores to set the threshold on, but got NaN or inf; check the data.")
    grid = torch.linspace(0, 1, GRID, dtype=torch.float64)
    threshold = quantiles(ordered, torch.tensor([quantile], dtype=torch.float64))
    return Reference(quantiles(ordered, grid).reshape(*shape, GRID), threshold.reshape(shape))


def quantiles(ordered: Tensor, shares: Tensor) -> Tensor:
    """Linear-interpolation quantiles of sorted rows; unlike torch.quantile without a limit on their length."""
    position = shares * (ordered.shape[1] - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=ordered.shape[1] - 1)
    part = (position - low).to(ordered.dtype)
    return torch.lerp(ordered[:, low], ordered[:, high], part.expand(len(ordered), -1))


def surprise(z: Tensor) -> Tensor:
    """``softplus(z)^2`` up to 9, in proportion to z beyond: rises everywhere, hardly at all in the lower tail."""
    s = F.softplus(z)
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
    minimise(
        [log_factor],
        lambda: F.cross_entropy(log_factor.exp() * logits, label) + PRIOR_ROWS * log_factor.square() / (2 * rows),
    )
    return log_factor.detach().exp()


def minimise(parameters: list[Tensor], objective: Callable[[], Tensor], steps: int = 60, change: float = 1e-9) -> None:
    """Move the parameters to where a smooth objective is smallest, by L-BFGS.

    At most so many `steps`, and none once the objective or the parameters change by less than `change`.
    """
    optimiser = torch.optim.LBFGS(parameters, max_iter=steps, tolerance_change=change, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        loss = objective()
        loss.backward()
        return float(loss.detach())

    with torch.enable_grad():
        optimiser.step(closure)
