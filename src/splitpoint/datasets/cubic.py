"""The cubic task ``y = x^3 + noise - E[noise]`` with three noise laws whose quantiles are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint.errors import SettingsError


@dataclass(frozen=True)
class Cubic:
    """Inputs `x` and targets `y`, both (N, 1)."""

    x: Tensor
    y: Tensor


def _log_normal(rows: int, generator: torch.Generator) -> Tensor:
    return (1.5 + torch.randn(rows, generator=generator)).exp() - math.exp(1.5 + 0.5)


def _trimodal(rows: int, generator: torch.Generator) -> Tensor:
    component = torch.multinomial(torch.tensor([0.4, 0.3, 0.3]), rows, replacement=True, generator=generator)
    centres = torch.tensor([0.0, 40.0, -10.0])[component]
    return centres + torch.randn(rows, generator=generator) - 9.0


def _gaussian(rows: int, generator: torch.Generator) -> Tensor:
    return 8 * torch.randn(rows, generator=generator)


NOISE_LAWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "log_normal": _log_normal,
    "trimodal": _trimodal,
    "gaussian": _gaussian,
}
"""Centred noise by name: log-normal(1.5, 1); 0.4 N(0,1) + 0.3 N(40,1) + 0.3 N(-10,1); N(0, sd 8)."""


def _law(noise: str) -> Callable[[int, torch.Generator], Tensor]:
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
