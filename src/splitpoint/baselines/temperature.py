"""One temperature for class probabilities (Guo et al. 2017): how it is found, and what it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.baselines.answers import ClassAnswer
from splitpoint.consistency import entropy
from splitpoint.metrics import ece

SMALLEST, LARGEST = 0.01, 100.0
POINTS, ROUNDS = 41, 6
ECE_GRID = [step / 10 for step in range(1, 101)]
"""Temperatures that the paper searches: 0.1 to 10 in steps of 0.1."""


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
