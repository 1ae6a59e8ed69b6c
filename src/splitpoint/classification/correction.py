"""Calibrated class probabilities from held-out rows: a regularised linear correction of the logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.cache import Moments, Table
from splitpoint.calibration import PRIOR_ROWS, log_losses, minimise, probable_factor
from splitpoint.groups import random_folds
from splitpoint.heads import FARTHEST
from splitpoint.tasks import Rows

FOLDS = 5
LARGEST = 65_536


Linear = tuple[Tensor, Tensor, Tensor]
"""Factor of the logits, bias (K,) and weights (C, K) of the standardised features."""


def _fit_linear(logits: Tensor, x: Tensor, label: Tensor, prior: float) -> Linear:
    """Most probable ``softmax(a logits + b + x W)`` if corrections ``b_k + x W_k`` have deviation `prior` a priori."""
    rows, width = x.shape
    log_factor = probable_factor(logits, label).log().requires_grad_()
    bias = logits.new_zeros(logits.shape[1], requires_grad=True)
    weight = logits.new_zeros(width, logits.shape[1], requires_grad=True)

    def objective() -> Iterator[Tensor]:
        size = (width * weight.square().sum() + bias.square().sum()) / prior**2 + PRIOR_ROWS * log_factor.square()
        return log_losses(
            logits, label, lambda own: log_factor.exp() * logits[own] + bias + x[own] @ weight, size / (2 * rows)
        )

    minimise([log_factor, bias, weight], objective)
    return log_factor.detach().exp(), bias.detach(), weight.detach()


def fit_correction(logits: Tensor, x: Tensor, label: Tensor, prior: float, generator: torch.Generator) -> Linear:
    """The correction of `cross_fit` alone, of rows that stand for themselves."""
    return cross_fit(logits, x, label, prior, generator)[0]


def cross_fit(
    logits: Tensor,
    x: Tensor,
    label: Tensor,
    prior: float,
    generator: torch.Generator,
    groups: Tensor | None = None,
) -> tuple[Linear, Tensor]:
    """Correction ``softmax(a logits + b + x W)`` from held-out rows, no better than it proves to be out of fold.

    `W` and `b` are the most probable under a Gaussian prior that gives a correction the deviation `prior`; a last
    factor comes from out-of-fold logits; and where plain temperature scaling, or leaving the logits as they are, has
    the smaller out-of-fold log loss, that is what is returned. When W would have more than 65,536 entries (many
    classes and features), it acts on the leading principal components of the features only.

    Also returned are logits (n, K) of the held-out rows as exchangeable with those of fresh rows as can be: where W and
    b are kept, those that other folds gave, since rows that were fitted look better than fresh ones; else the scaled
    logits, since a single factor cannot follow single rows.

    Args:
        logits: (n, K).
        x: (n, C) standardised features.
        label: (n,) class indices.
        prior: deviation in logit units.
        generator: draws the folds.
        groups: (n,) numbers of the groups that the rows belong to, which no fold divides; None for none.
    """
    components = max(1, LARGEST // logits.shape[1])
    if components < x.shape[1]:
        values, vectors = torch.linalg.eigh(x.T @ x / max(len(x), 1))
        basis = vectors[:, -components:] / values[-components:].mean().clamp(min=1e-12).sqrt()
        (factor, bias, weight), held_out = cross_fit(logits, x @ basis, label, prior, generator, groups)
        return (factor, bias, basis @ weight), held_out
    plain = (
        probable_factor(logits, label),
        logits.new_zeros(logits.shape[1]),
        logits.new_zeros(x.shape[1], logits.shape[1]),
    )
    if len(label) < 2 * FOLDS or (groups is not None and len(groups.unique()) < FOLDS):
        return plain, plain[0] * logits
    fold = random_folds(len(label), FOLDS, generator, groups)
    corrected, scaled = torch.empty_like(logits), torch.empty_like(logits)
    for held in (fold == number for number in range(FOLDS)):
        factor, bias, weight = _fit_linear(logits[~held], x[~held], label[~held], prior)
        corrected[held] = factor * logits[held] + bias + x[held] @ weight
        scaled[held] = probable_factor(logits[~held], label[~held]) * logits[held]
    last = probable_factor(corrected, label)
    losses = [F.cross_entropy(each, label) for each in (last * corrected, scaled, logits)]
    if losses[0] >= min(losses[1:]):
        factor = plain[0] if losses[1] < losses[2] else torch.ones_like(plain[0])
        return (factor, *plain[1:]), factor * logits
    factor, bias, weight = _fit_linear(logits, x, label, prior)
    return (last * factor, last * bias, last * weight), last * corrected


class Correction(nn.Module):
    """Calibrated logits ``factor * logits + bias + ((h - center) / spread) weight``."""

    factor: Tensor
    bias: Tensor
    weight: Tensor
    center: Tensor
    spread: Tensor

    def __init__(self, factor: Tensor, bias: Tensor, weight: Tensor, center: Tensor, spread: Tensor) -> None:
        super().__init__()
        tensors = {"factor": factor, "bias": bias, "weight": weight, "center": center, "spread": spread}
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def shift(self, features: Tensor) -> Tensor:
        """(R, C) features -> (R, K) what is added to the scaled logits."""
        x = ((features - self.center) / self.spread).clamp(-FARTHEST, FARTHEST)
        return torch.addmm(self.bias, x, self.weight)

    @staticmethod
    def fit(rows: Rows, prior: float, generator: torch.Generator) -> Correction:
        """From held-out rows with ``features``, ``logits`` and ``label``, perhaps ``group``; see `cross_fit`."""
        return Correction.cross_fitted(rows, prior, generator)[0]

    @staticmethod
    def cross_fitted(rows: Rows, prior: float, generator: torch.Generator) -> tuple[Correction, Tensor]:
        """The same, and logits (n, K) of these rows as if they were fresh; see `cross_fit`."""
        features = rows["features"]
        center, spread = features.mean(0), features.std(0, correction=0)
        spread = torch.where(Moments([features]).constant, 1.0, spread)
        standardised = (features - center) / spread
        groups = Table.in_memory(rows).groups()
        fitted, held_out = cross_fit(rows["logits"], standardised, rows["label"][:, 0], prior, generator, groups)
        return Correction(*fitted, center, spread), held_out

    @staticmethod
    def scaling(logits: Tensor, label: Tensor, width: int) -> Correction:
        """One factor for all logits (n, K) of held-out rows with labels (n,), and no shift by `width` features."""
        classes = logits.shape[1]
        zeros, ones = logits.new_zeros(width), logits.new_ones(width)
        factor = probable_factor(logits, label)
        return Correction(factor, logits.new_zeros(classes), logits.new_zeros(width, classes), zeros, ones)
