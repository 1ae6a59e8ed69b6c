"""What a fit of `Agreement` finds out about itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from splitpoint.agreement.probes import known
from splitpoint.checks import Check

ROWS_OF_CLASS = 4.0
"""Rows of a class on average below which a probe can hardly tell it from others."""

NOTHING = 0.02
"""Share of what there is to know about the classes below which a modality knows nothing."""

SHARED = 0.01
"""Share of calibration rows that are training rows above which they are not held out."""


def rows_check(train: Tensor, held_out: Tensor | None, classes: int) -> Check:
    """Rows of a class that the probes are fitted on, on average."""
    rows = len(train) + (0 if held_out is None else len(held_out))
    mean, name = rows / classes, "rows of a class"
    if mean < ROWS_OF_CLASS:
        advice = f"{rows} rows are few to tell {classes} classes apart, so that most opinions say little; give more."
        return Check(name, mean, "warn", advice)
    return Check(name, mean, "ok", "that probes are fitted on, on average.")


def calibration_check(train: Sequence[Tensor], held_out: Sequence[Tensor] | None) -> Check:
    """Whether the opinions are calibrated on rows that the model has not seen."""
    name = "calibration rows"
    if held_out is None:
        advice = (
            "there are none: opinions are calibrated on rows left out by the probes, but the model has seen them all, "
            "and features that it memorised look better than those of new rows; give calibration= data."
        )
        return Check(name, math.nan, "unknown", advice)
    size = torch.cat([own.std(0, correction=0) for own in train]).clamp(min=1e-12)
    seen = set(_prints(train, size))
    share = sum(row in seen for row in _prints(held_out, size)) / len(held_out[0])
    if share > SHARED:
        advice = (
            f"{share:.0%} of them are training rows, whose features look better than those of new rows; hold rows out."
        )
        return Check(name, share, "warn", advice)
    return Check(name, share, "ok", "share of them that are training rows.")


def _prints(features: Sequence[Tensor], size: Tensor) -> list[bytes]:
    """The rows as bytes, all modalities side by side, equal where numbers are up to rounding in units of `size`."""
    return [row.tobytes() for row in (torch.cat(list(features), 1) / size).round(decimals=4).numpy() + 0.0]


def knowledge_check(modality: str, loss: float, classes: int) -> Check:
    """How much of the classes a modality knows on rows that were left out."""
    share, name = known(loss, classes), f"knowledge of '{modality}'"
    if share < NOTHING:
        advice = (
            "it says nothing about the classes of rows left out, so it can neither be blamed nor convict another; "
            "choose another layer of its branch, or leave it out."
        )
        return Check(name, share, "warn", advice)
    return Check(name, share, "ok", "share of what there is to know about the classes, on rows left out.")
