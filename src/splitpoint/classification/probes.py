"""Probes: rows out of distribution that are made up of training rows, to see which score tells them from these."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from splitpoint.tasks import Rows

COUNT, OF_ROWS = 300, 1000
"""Probes of each kind, and most training rows that they are made of."""

MIDDLE = (0.3, 0.7)
LEAST_RIDGE = 1e-6


def probes(rows: Rows, parts: Sequence[int] = ()) -> list[tuple[Tensor, Tensor]]:
    """Features (M, C) and logits (M, K) of mixtures, noise and shuffled features.

    - Mixtures are points between two rows of different classes, 30% to 70% of the way.
    - Noise is the mean of the rows plus a normal combination of their differences to it: it has their covariance.
    - Shuffled features come from a random row each.
    - Crossed branches, where there are several, come from a random row each, as if modalities contradicted each other.

    Logits are those that a linear last layer gives: the same mixtures and combinations, and for shuffled features the
    linear function that fits the logits of the rows. For features of earlier layers that is an approximation.

    Args:
        rows: training rows with ``features``, ``logits`` and ``label``.
        parts: numbers of features of branches.
    """
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(rows["label"]), generator=generator)[:OF_ROWS]
    features, logits, label = rows["features"][chosen], rows["logits"][chosen], rows["label"][chosen, 0]
    one, other = torch.randint(len(label), (2, COUNT), generator=generator)
    apart = label[one] != label[other]
    one, other = one[apart], other[apart]
    part = MIDDLE[0] + (MIDDLE[1] - MIDDLE[0]) * torch.rand(len(one), 1, generator=generator, dtype=features.dtype)
    combination = torch.randn(COUNT, len(label), generator=generator, dtype=features.dtype) / len(label) ** 0.5
    places = torch.randint(len(label), (COUNT, features.shape[1]), generator=generator)
    shuffled = features.gather(0, places)

    def mixed(values: Tensor) -> Tensor:
        return values[other].lerp(values[one], part)

    def noise(values: Tensor) -> Tensor:
        center = values.mean(0)
        return torch.addmm(center, combination, values - center)

    found = [(noise(features), noise(logits)), (shuffled, _linear(features, logits, shuffled))]
    if len(parts) > 1:
        places = torch.randint(len(label), (COUNT, len(parts)), generator=generator)
        crossed = features.gather(0, places.repeat_interleave(torch.tensor(parts), 1))
        found.append((crossed, _linear(features, logits, crossed)))
    return [(mixed(features), mixed(logits)), *found] if len(one) else found


def _linear(features: Tensor, logits: Tensor, new: Tensor) -> Tensor:
    """Logits of new features by the linear function, nearly without a ridge, that fits the known ones."""
    center, middle = features.mean(0), logits.mean(0)
    x, y = (features - center).double(), (logits - middle).double()
    gram = x.T @ x
    ridge = LEAST_RIDGE * gram.diagonal().mean().clamp(min=1e-12) * torch.eye(len(gram), dtype=torch.float64)
    shares = x @ torch.cholesky_solve((new - center).double().T, torch.linalg.cholesky(gram + ridge))
    return torch.addmm(middle.double(), shares.T, y).to(logits.dtype)
