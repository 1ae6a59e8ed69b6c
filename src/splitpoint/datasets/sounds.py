"""Sounds as log mel power, (n, 1, bands, frames) in [0, 1]: 1 is the maximum of the sound, 0 is 80 dB below it.

On this scale two sounds can be heard together: their powers add up.
"""

from __future__ import annotations

import torch
from torch import Tensor

DECIBELS = 80.0
"""Range of the scale: what is weaker counts as that weak."""


def loudness(power: Tensor) -> Tensor:
    """Powers (n, 1, bands, frames) on the scale; silence, which has no maximum, is 0 everywhere."""
    most = power.amax((1, 2, 3), keepdim=True)
    relative = 10 * (power / torch.where(most > 0, most, 1.0)).clamp(min=1e-12).log10()
    return (1 + relative / DECIBELS).clamp(0, 1) * (most > 0)


def power_of(sounds: Tensor) -> Tensor:
    """Powers relative to the maximum of each sound, the inverse of `loudness`; the bottom of the scale is no power."""
    return torch.where(sounds > 0, 10 ** (DECIBELS / 10 * (sounds - 1)), 0.0)


def with_background(sounds: Tensor, background: Tensor, ratio: Tensor) -> Tensor:
    """Every sound with a background of its own, whose mean power is `ratio` (n,) dB below that of the sound.

    Phases are unknown on this scale, so that powers are added, which is right in the mean over phases.
    """
    wanted, other = power_of(sounds), power_of(background)
    mean, level = wanted.mean((1, 2, 3), keepdim=True), other.mean((1, 2, 3), keepdim=True)
    gain = mean / torch.where(level > 0, level, 1.0) * 10 ** (-ratio.reshape(-1, 1, 1, 1) / 10)
    return loudness(wanted + gain * other)
