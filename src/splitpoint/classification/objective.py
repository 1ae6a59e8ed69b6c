"""What the networks of a classifier learn: class frequencies, total MARs and zero-included MARs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.classification.predictor import frequency_logits
from splitpoint.consistency import zero_included_residuals
from splitpoint.heads import Heads
from splitpoint.tasks import Rows
from splitpoint.training import Losses


def _one_hot(rows: Rows) -> Tensor:
    return F.one_hot(rows["label"][..., 0], rows["logits"].shape[-1]).to(rows["logits"].dtype)


def _frequency_loss(heads: Heads, rows: Rows) -> Losses:
    """Log loss (E,) of the class frequencies ``softmax(exp(a) logits + g(h))``."""
    logits = frequency_logits(heads(rows["features"])["frequency"], rows["logits"], 2)
    chosen = logits.log_softmax(2).gather(2, rows["label"])
    return {"frequency": -chosen.mean((1, 2))}


def _mar_loss(heads: Heads, rows: Rows) -> Losses:
    """Squared error (E,) of the total MARs against ``|one-hot - p|`` (E17)."""
    residual = (_one_hot(rows) - rows["logits"].softmax(2)).abs()
    return {"mar": (heads(rows["features"])["mar"] - residual).square().mean((1, 2))}


def _zero_included_loss(heads: Heads, rows: Rows) -> Losses:
    """Squared error (E,) of the three zero-included MARs (E18)."""
    target = torch.cat(zero_included_residuals(rows["logits"].softmax(2), _one_hot(rows)), 2)
    error = heads(rows["features"])["zero_included"] - target
    return {"zero_included": 3 * error.square().mean((1, 2))}


LOSSES: dict[str, Callable[[Heads, Rows], Losses]] = {
    "frequency": _frequency_loss,
    "mar": _mar_loss,
    "zero_included": _zero_included_loss,
}
"""Losses (E,) of the members of a stack, by the trunk that is trained."""
