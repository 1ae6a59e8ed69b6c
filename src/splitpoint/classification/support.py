"""Where the training set says something about a classifier's input, and where it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from splitpoint.cache import Table, feature_moments
from splitpoint.heads import projection

RIDGE = 0.1
LEAST_CONFIDENCE = -2.0
BUFFERS = ("center", "spread", "whiten", "centres", "prior", "usual", "deviation", "offset")


class Support(nn.Module):
    """Share ``s(x)`` in (0, 1) with which the training set has nothing to say about an input.

    Three pieces of evidence, larger for less support: the tied Mahalanobis distance of the features to the nearest
    class centre; minus the logsumexp of the centred logits; minus the log-odds of the winning class. Each is
    standardised by its mean and deviation over the training rows, the latter two count no lower than -2 (a network
    can be confident without bound, and must not argue a distance away), and

        ``s = sigmoid(steepness * sum of the three + offset)``

    where the offset makes the mean of `s` over the training rows equal to `mass`. All of it is closed form.

    Args:
        tensors: the buffers by name, see `fit`.
        steepness: of the sigmoid.
    """

    center: Tensor
    spread: Tensor
    whiten: Tensor
    centres: Tensor
    prior: Tensor
    usual: Tensor
    deviation: Tensor
    offset: Tensor

    def __init__(self, tensors: Mapping[str, Tensor], steepness: float) -> None:
        super().__init__()
        self.steepness = steepness
        for name in BUFFERS:
            self.register_buffer(name, tensors[name])

    @staticmethod
    def fit(table: Table, classes: int, steepness: float, mass: float) -> Support:
        """Class centres and tied covariance of standardised features, then the scale of the evidence.

        The covariance within classes is ridged by a tenth of its mean variance. Features wider than 2048 are first
        projected to 512 at random.

        Args:
            table: training rows with ``features``, ``logits`` and ``label``.
            classes: their number K.
            steepness: of the sigmoid.
            mass: mean of `s` over the training rows.
        """
        center, spread = feature_moments(table)
        project = projection(len(center))
        width = project.shape[1]
        counts, sums = (
            torch.zeros(classes, dtype=torch.float64),
            torch.zeros(classes, width, dtype=torch.float64),
        )
        gram = torch.zeros(width, width, dtype=torch.float64)
        for part in table.slices():
            x = (((part["features"] - center) / spread) @ project).double()
            label = part["label"][:, 0]
            counts += torch.bincount(label, minlength=classes)
            sums.index_add_(0, label, x)
            gram += x.T @ x
        seen = counts > 0
        centres = sums[seen] / counts[seen, None]
        within = (gram - (centres * counts[seen, None]).T @ centres) / counts.sum()
        ridge = RIDGE * within.diagonal().mean().clamp(min=1e-8)
        factor = torch.linalg.cholesky(within + ridge * torch.eye(width, dtype=torch.float64))
        whiten = project.double() @ torch.linalg.inv(factor).T
        tensors = {
            "center": center,
            "spread": spread,
            "whiten": whiten.float(),
            "centres": torch.linalg.solve_triangular(factor, centres.T, upper=False).T.float(),
            "prior": (counts + 1) / (counts.sum() + classes),
            "usual": torch.zeros(3, dtype=torch.float64),
            "deviation": torch.ones(3, dtype=torch.float64),
            "offset": torch.zeros((), dtype=torch.float64),
        }
        support = Support(tensors, steepness)
        evidence = torch.cat([support.evidence(support.distance(p["features"]), p["logits"]) for p in table.slices()])
        support.usual.copy_(evidence.mean(0))
        support.deviation.copy_(evidence.std(0, correction=0).clamp(min=1e-9))
        support.offset.copy_(_offset(steepness * support._summed(evidence), mass))
        return support

    def distance(self, features: Tensor) -> Tensor:
        """(R, C) features -> (R,) Mahalanobis distance to the nearest class centre."""
        x = ((features - self.center) / self.spread) @ self.whiten
        return torch.cdist(x, self.centres, compute_mode="use_mm_for_euclid_dist").amin(1)

    def evidence(self, distance: Tensor, logits: Tensor) -> Tensor:
        """Distance (R, ...) and logits (R, K, ...) -> (R, 3, ...) evidence against support, in float64."""
        centred = logits.double() - logits.double().mean(1, keepdim=True)
        mass = centred.logsumexp(1)
        top, winner = centred.max(1, keepdim=True)
        others = centred.scatter(1, winner, -math.inf).logsumexp(1)
        odds = (top.squeeze(1) - others).clamp(max=80.0)
        return torch.stack([distance.double(), -mass, -odds], 1)

    def _summed(self, evidence: Tensor) -> Tensor:
        shape = (3, *[1] * (evidence.dim() - 2))
        distance, *confidence = ((evidence - self.usual.reshape(shape)) / self.deviation.reshape(shape)).unbind(1)
        return distance + sum(part.clamp(min=LEAST_CONFIDENCE) for part in confidence)

    def forward(self, distance: Tensor, logits: Tensor) -> Tensor:
        """Distance (R, ...) and logits (R, K, ...) -> ``s`` (R, ...) in float64."""
        return torch.sigmoid(self.steepness * self._summed(self.evidence(distance, logits)) + self.offset)


def _offset(values: Tensor, mass: float) -> Tensor:
    """The offset at which the mean of ``sigmoid(values + offset)`` is `mass`, by bisection."""
    low, high = -values.max() - 40, -values.min() + 40
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if torch.sigmoid(values + middle).mean() > mass else (middle, high)
    return (low + high) / 2
