"""The cubic task ``y = x^3 + noise - E[noise]`` with three noise laws whose quantiles are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint.datasets.noise import NOISE_LAWS, NoiseLaw
from splitpoint.errors import SettingsError


@dataclass(frozen=True)
class Cubic:
    """Inputs `x` and targets `y`, both (N, 1)."""

    x: Tensor
    y: Tensor


def _law(noise: str) -> NoiseLaw:
    if noise not in NOISE_LAWS:
        raise SettingsError(f"Expected noise to be one of {sorted(NOISE_LAWS)}, but got {noise!r}.")
    return NOISE_LAWS[noise]


def cubic(rows: int, noise: str = "log_normal", limit: float = 4.0, *, generator: torch.Generator) -> Cubic:
    """Draw `rows` points with `x` uniform in [-limit, limit] and one of the `NOISE_LAWS`."""
    law = _law(noise)
    x = limit * (2 * torch.rand(rows, generator=generator) - 1)
    return Cubic(x[:, None], (x**3 + law(rows, generator))[:, None])


def side_quantiles(noise: str, level: float, rows: int = 2_000_000) -> tuple[float, float]:
    """True half-widths ``(down, up)``: the `level`-quantile of noise sizes below and above the mean, by simulation."""
    if not 0 < level < 1:
        raise SettingsError(f"Expected a level in (0, 1), but got {level}.")
    draws = _law(noise)(rows, torch.Generator().manual_seed(0)).double()
    down, up = (torch.sort(side).values for side in (-draws[draws < 0], draws[draws > 0]))
    return float(down[int(level * len(down))]), float(up[int(level * len(up))])
