"""The cubic task ``y = x^3 + noise - E[noise]``, and the laws of noise of the paper, whose means are known exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint.errors import SettingsError


@dataclass(frozen=True)
class NoiseLaw:
    """A law of noise; calling it with a number of rows and a generator gives centred draws (rows,).

    Attributes:
        draw: draws (rows,) from the law as it is named, from a number of rows and a generator.
        mean: its exact mean, which centred draws are without.
    """

    draw: Callable[[int, torch.Generator], Tensor]
    mean: float

    def __call__(self, rows: int, generator: torch.Generator) -> Tensor:
        """Draws (rows,) with mean zero."""
        return self.draw(rows, generator) - self.mean


def log_normal(mu: float, sigma: float, scale: float = 1.0) -> NoiseLaw:
    """``scale exp(N(mu, sigma))``, with mean ``scale exp(mu + sigma^2 / 2)``."""

    def draw(rows: int, generator: torch.Generator) -> Tensor:
        return scale * (mu + sigma * torch.randn(rows, generator=generator)).exp()

    return NoiseLaw(draw, scale * math.exp(mu + sigma**2 / 2))


def normal(deviation: float) -> NoiseLaw:
    """``N(0, deviation)``."""
    return NoiseLaw(lambda rows, generator: deviation * torch.randn(rows, generator=generator), 0.0)


def mixture(weights: Sequence[float], means: Sequence[float], deviations: Sequence[float]) -> NoiseLaw:
    """Mixture of normals ``sum_i weights_i N(means_i, deviations_i)``; the weights sum to 1."""

    def draw(rows: int, generator: torch.Generator) -> Tensor:
        component = torch.multinomial(torch.tensor(weights), rows, replacement=True, generator=generator)
        centre, spread = torch.tensor(means)[component], torch.tensor(deviations)[component]
        return centre + spread * torch.randn(rows, generator=generator)

    return NoiseLaw(draw, sum(weight * mean for weight, mean in zip(weights, means, strict=True)))


NOISE_LAWS: dict[str, NoiseLaw] = {
    "log_normal": log_normal(1.5, 1.0),
    "trimodal": mixture((0.4, 0.3, 0.3), (0.0, 40.0, -10.0), (1.0, 1.0, 1.0)),
    "gaussian": normal(8.0),
}
"""Noise of the cubic task: log-normal(1.5, 1); 0.4 N(0,1) + 0.3 N(40,1) + 0.3 N(-10,1); N(0, sd 8)."""

UCI_NOISE_LAWS: dict[str, NoiseLaw] = {
    "log_normal": log_normal(1.0, 0.5),
    "trimodal": mixture((0.3, 0.4, 0.3), (-1.0, 0.0, 3.0), (0.1, 0.1, 0.1)),
    "authors_log_normal": log_normal(1.0, 0.5, scale=0.1),
    "authors_trimodal": mixture((0.3, 0.4, 0.3), (-0.2, 0.0, 0.6), (0.05, 0.0, 0.15)),
}
"""Noise of the UCI tasks, in standard deviations of the target, to be added to normalised targets.

The first two are as the paper states them: log-normal(1, 0.5); 0.3 N(-1,.1) + 0.4 N(0,.1) + 0.3 N(3,.1). The other two
are as the authors' published code draws them: a tenth of that log-normal, and a mode of -1, 0 or 3 times N(.2, .05),
which leaves the middle mode without any spread. That code differs in three ways that are no part of a law: it centres
by the mean of the sample, it takes the deviation of all targets, those of the test rows too, and it adds noise to two
copies of the data and keeps a third one clean.
"""


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
