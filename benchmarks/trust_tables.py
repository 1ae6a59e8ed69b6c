"""Intervals and scores of regression networks that memorised their rows to different degrees, and foreign inputs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import splitpoint as sp
from development_cell import MissingError, file_of
from splitpoint.metrics import picp, spearman, winkler
from splitpoint.networks import NetworkTraining, train_networks

LEVEL = 0.9
JUDGED = 2000
"""Confidence level of the intervals, and most rows that they are judged on."""

FRIEDMAN = "friedman"
"""A set that is made up: Friedman's first function (1991) with five idle inputs, noise that grows with the second."""

REAL = ("concrete", "energy", "wine", "kin8nm", "power", "protein", "naval", "boston", "yacht")


Pair = tuple[Tensor, Tensor]


def table(name: str) -> Pair:
    """Inputs and targets (N, 1) of a set; of UCI sets the rows of the first customary training part alone."""
    if name == FRIEDMAN:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(6000, 10, generator=generator)
        clean = 10 * (torch.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5).square() + 10 * x[:, 3] + 5 * x[:, 4]
        return x, (clean + (0.5 + 2 * x[:, 1]) * torch.randn(len(x), generator=generator)).unsqueeze(1)
    with np.load(file_of(f"uci/{name}.npz"), allow_pickle=False) as file:
        rows = file["train_0"]
        x, y = file["X"][rows].astype(np.float64), file["y"][rows].astype(np.float64).reshape(-1, 1)
    return torch.from_numpy(x), torch.from_numpy(y)


def available() -> list[str]:
    """Sets whose files are there, and the one that is made up."""
    found = []
    for name in REAL:
        try:
            file_of(f"uci/{name}.npz")
        except MissingError:
            continue
        found.append(name)
    return [*found, FRIEDMAN]


@dataclass(frozen=True)
class Split:
    """Rows to fit on and rows to judge, standardised by the former."""

    fit: Pair
    judged: Pair


def split(name: str, rows: int, seed: int) -> Split | None:
    """Random rows of a set; None where fewer than 100 would be left to judge."""
    x, y = table(name)
    if len(x) < rows + 100:
        return None
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return standardised((x, y), order[:rows], order[rows:][:JUDGED])


def standardised(pair: Pair, fit: Tensor, judged: Tensor) -> Split:
    """Both parts by mean and deviation of the first, in float32."""
    parts = []
    for values in pair:
        center, spread = values[fit].mean(0), values[fit].std(0)
        scaled = ((values - center) / torch.where(spread > 1e-9, spread, 1.0)).float()
        parts.append((scaled[fit], scaled[judged]))
    (x, x_judged), (y, y_judged) = parts
    return Split((x, y), (x_judged, y_judged))


def networks(splits: Sequence[Split], epochs: int, seed: int) -> list[nn.Module]:
    """Two hidden layers of 64 ReLU units on every split, Adam at 1e-3 in batches of 64."""
    inputs = splits[0].fit[0].shape[1]

    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    seeds = [seed + number for number in range(len(splits))]
    return train_networks(
        [factory] * len(splits),
        [own.fit for own in splits],
        seeds,
        NetworkTraining(epochs=epochs),
        decide=lambda *_: sp.Regression(),
        progress=False,
    )


# Coverage by overfitting


@dataclass(frozen=True)
class CoverageFit:
    """What the intervals of one network at the level .90 are worth without calibration rows.

    Attributes:
        name: of the set.
        rows: that network and heads were trained on.
        epochs: of the network.
        residuals: the setting.
        seed: of the rows.
        coverage: share of the judged rows inside.
        winkler: score of the intervals, in deviations of the target.
        spearman: rank correlation of `total` with the error.
        by_width: that of the interval's width.
        warned: whether the fit warned.
        checks: what it said of itself.
        seconds: CPU time of the fit.
    """

    name: str
    rows: int
    epochs: int
    residuals: str
    seed: int
    coverage: float
    winkler: float
    spearman: float
    by_width: float
    warned: bool
    checks: tuple[sp.Check, ...]
    seconds: float

    @property
    def place(self) -> tuple[str, int, int, str]:
        """What fits that differ in their seed alone have in common."""
        return self.name, self.rows, self.epochs, self.residuals


def coverage_fits(
    names: Sequence[str], rows: Sequence[int], epochs: Sequence[int], seeds: Sequence[int], settings: Sequence[str]
) -> Iterator[CoverageFit]:
    """All of them; networks that differ in their seed alone are trained as one stack."""
    for name in names:
        for count in rows:
            parts = [own for seed in seeds if (own := split(name, count, seed)) is not None]
            if not parts:
                continue
            for length in epochs:
                trained = networks(parts, length, 0)
                for seed, (part, network) in enumerate(zip(parts, trained, strict=True)):
                    for residuals in settings:
                        yield covered(name, length, residuals, seed, part, network)


def covered(name: str, epochs: int, residuals: str, seed: int, part: Split, network: nn.Module) -> CoverageFit:
    """One of them."""
    method = sp.SplitPointRegressor(LEVEL, residuals=residuals)
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", sp.SplitPointWarning)
        uq = method.fit(network, part.fit, seed=seed, progress=False)
    seconds = time.process_time() - began
    x, y = part.judged
    out = uq.predict(x)
    error = (out.mean - y).abs()
    return CoverageFit(
        name,
        len(part.fit[0]),
        epochs,
        residuals,
        seed,
        picp(out, y),
        winkler(out, y),
        spearman(out.total, error),
        spearman(out.upper - out.lower, error),
        any(issubclass(one.category, sp.SplitPointWarning) for one in caught),
        uq.checks,
        seconds,
    )
