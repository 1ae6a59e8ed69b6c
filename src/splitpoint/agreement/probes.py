"""Linear probes: what the features of one modality say about the classes, as calibrated probabilities.

A probe is a ridge-regularised multinomial logistic regression on standardised features, in which all classes count the
same however many rows they have; a modality that knows nothing then gives the uniform law.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.calibration import minimise

RIDGES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Ridges that are tried, largest first; each fit starts from the one before."""

PATIENCE = 2
"""Ridges without an improvement after which no smaller ones are tried."""

COMPONENTS, ROUNDS = 512, 3
"""Most principal components of the features that a probe reads, and rounds of the iteration that finds them."""

STEPS = 40
"""Most steps of one fit."""

CHANGE = 1e-6
"""Change of the log loss below which a fit is done."""

ERRORS = 2.0
"""Standard errors by which a probe must be better than the uniform law, on rows left out, to say anything."""

PRIOR_ROWS = 5
"""Rows that the prior of the temperature is worth."""


class Rows(NamedTuple):
    """Features (n, C) of one modality and the classes (n,) of the same rows, numbered from 0."""

    features: Tensor
    label: Tensor

    def at(self, chosen: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(self.features[chosen], self.label[chosen])


@dataclass(frozen=True)
class Probe:
    """``softmax(((x - center) / scale) weight + bias)``.

    Attributes:
        center: (C,) mean of the features.
        scale: (C,) their deviation.
        weight: (C, K).
        bias: (K,).
    """

    center: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """(n, K) for features (n, C)."""
        return ((features - self.center) / self.scale) @ self.weight + self.bias

    def sharpened(self, factor: Tensor) -> Probe:
        """The probe with its logits times `factor`, the inverse of a temperature."""
        return Probe(self.center, self.scale, self.weight * factor, self.bias * factor)


BLANK = Probe(*[torch.empty(0)] * 4)


def balanced(label: Tensor, classes: int) -> Tensor:
    """Weights (n,) of rows, of sum 1, with which all classes that have any count the same.

    >>> balanced(torch.tensor([0, 0, 2]), 3)
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """
    counts = torch.bincount(label, minlength=classes).double()
    return 1 / (counts[label] * (counts > 0).sum())


def log_loss(logits: Tensor, label: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of ``-log p``."""
    return (weights.to(logits) * F.cross_entropy(logits, label, reduction="none")).sum()


class Found(NamedTuple):
    """A calibrated probe, its log loss on rows that were left out, and its ridge.

    A probe that is no better than the uniform law there is made to give that law.
    """

    probe: Probe
    loss: float
    ridge: float


def cross_fitted(own: Rows, folds: Tensor, classes: int, more: Rows | None = None) -> Found:
    """The probe of some rows, with the ridge and the temperature that are best where each of them is left out.

    Args:
        own: rows that are left out, fold by fold.
        folds: (n,) numbers of their folds.
        classes: number of classes K.
        more: further rows that every probe is fitted on.
    """
    weights = balanced(own.label, classes)
    parts = [folds == fold for fold in folds.unique()]
    paths = [path(joined(more, own.at(~part)), classes) for part in parts]
    best, since, factor, said = Found(BLANK, math.inf, RIDGES[0]), 0, weights.new_ones(()), weights
    for steps in zip(*paths, strict=True):
        logits = own.features.new_zeros(len(own.label), classes)
        for part, (_, probe) in zip(parts, steps, strict=True):
            logits[part] = probe.logits(own.features[part])
        sharp = sharpness(logits, own.label, weights)
        loss, since = float(log_loss(sharp * logits, own.label, weights)), since + 1
        if loss < best.loss:
            best, since, factor, said = Found(BLANK, loss, steps[0][0]), 0, sharp, sharp * logits
        if since == PATIENCE:
            break
    if not speaks(said, own.label, weights):
        best, factor = best._replace(loss=math.log(classes)), torch.zeros_like(factor)
    whole = next(probe for ridge, probe in path(joined(more, own), classes) if ridge == best.ridge)
    return best._replace(probe=whole.sharpened(factor.to(whole.weight)))


def speaks(logits: Tensor, label: Tensor, weights: Tensor) -> bool:
    """Whether the logits tell more of the labels than the uniform law does, beyond chance."""
    gain = math.log(logits.shape[1]) - F.cross_entropy(logits, label, reduction="none").double()
    mean = (weights * gain).sum()
    error = (weights * (gain - mean)).square().sum().sqrt()
    return bool(mean > ERRORS * error)


def joined(more: Rows | None, own: Rows) -> Rows:
    """Both together."""
    if more is None:
        return own
    return Rows(torch.cat([more.features, own.features]), torch.cat([more.label, own.label]))


def sharpness(logits: Tensor, label: Tensor, weights: Tensor) -> Tensor:
    """The most probable factor of the logits, the inverse of a temperature, by rows with these weights.

    A standard normal prior on its logarithm, worth five rows, keeps it in hand where few rows are separable.
    """
    log_factor = torch.zeros((), dtype=logits.dtype, device=logits.device, requires_grad=True)
    strength = PRIOR_ROWS / (2 * len(label))

    def objective() -> list[Tensor]:
        return [log_loss(log_factor.exp() * logits, label, weights) + strength * log_factor.square()]

    minimise([log_factor], objective)
    return log_factor.detach().exp()


def path(rows: Rows, classes: int) -> Iterator[tuple[float, Probe]]:
    """Ridges and the probes fitted with them, largest ridge first.

    ``sum_i w_i (-log p_i) + ridge / 2 (|W|^2 + |b|^2)`` is minimised by L-BFGS in coordinates in which its curvature is
    at most 1: that of the log loss along a direction is at most half the variance of the features (Boehning 1992).
    """
    center, scale = rows.features.double().mean(0), _deviation(rows.features)
    standard = ((rows.features.double() - center) / scale).float()
    basis = _basis(standard)
    reduced = standard if basis is None else standard @ basis
    variance, axes = torch.linalg.eigh((reduced.T @ reduced).double() / len(reduced))
    turn = axes.float() if basis is None else basis @ axes.float()
    turned = standard @ turn
    weights = balanced(rows.label, classes).float()
    solution = turned.new_zeros(turned.shape[1] + 1, classes)
    for ridge in RIDGES:
        size = torch.cat([variance.clamp(min=0), variance.new_ones(1)])
        unit = (size / 2 + ridge).rsqrt().float().unsqueeze(1)
        solution = _fitted(turned, rows.label, weights, ridge, unit, solution)
        weight, bias = turn @ solution[:-1], solution[-1]
        yield ridge, Probe(center.float(), scale.float(), weight, bias)


def _fitted(x: Tensor, label: Tensor, weights: Tensor, ridge: float, unit: Tensor, start: Tensor) -> Tensor:
    """Weights and bias (C + 1, K) of one fit that begins at `start`."""
    free = (start / unit).requires_grad_()

    def objective() -> list[Tensor]:
        own = unit * free
        return [log_loss(torch.addmm(own[-1], x, own[:-1]), label, weights) + ridge / 2 * own.square().sum()]

    minimise([free], objective, STEPS, CHANGE)
    found: Tensor = (unit * free).detach()
    return found


def _deviation(features: Tensor) -> Tensor:
    """(C,) deviations; 1 for features that are constant up to rounding."""
    spread = features.double().std(0, correction=0)
    least = 1e-6 * features.double().abs().amax(0).clamp(min=1e-30)
    return torch.where(spread > least, spread, 1.0)


def _basis(standard: Tensor) -> Tensor | None:
    """Orthonormal directions (C, R) of the most variance; None where all directions are read."""
    most = min(COMPONENTS, len(standard))
    if standard.shape[1] <= most:
        return None
    start = torch.randn(standard.shape[1], most, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    basis = start.to(standard.device)
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(standard.T @ (standard @ basis)).Q
    return basis


def known(loss: float, classes: int) -> float:
    """Share of what there is to know about equally probable classes that a probe of this log loss knows."""
    return 1 - loss / math.log(classes)
