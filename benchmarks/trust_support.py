"""How well `support` of a regressor tells foreign inputs from its own, beside three rivals, on tables of numbers.

    python benchmarks/trust_support.py [--sets concrete wine ...] [--seeds 3]

Networks are those of `trust_tables.py` (two hidden layers of 64, 60 epochs) on 1200 random rows, or 70% of a small set.
Test inputs are told from three kinds of foreign ones:

- permuted: the test inputs with every column shuffled by itself;
- extrapolated: the test inputs times three;
- shifted: rows beyond the 80% quantile of the first principal component, of networks trained on rows below it.

Rivals are the leverage of the last layer alone, the distance to the 10th nearest training input, and the width of the
interval. A second table shows the median of `support` over 300, 600, 1200 and 2400 rows, and how many times as large it
is where noise of the size of the targets is added to them.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

import splitpoint as sp
from splitpoint.metrics import auroc
from trust_tables import LEVEL, Split, available, networks, split, standardised, table

EPOCHS, ROWS, SHARE = 60, 1200, 0.7
"""Epochs of the networks, most rows that they are trained on, and at most which share of a set."""

NEIGHBOUR = 10
SIZES = (300, 600, 1200, 2400)
FOREIGN = ("shifted", "permuted", "extrapolated")
SCORES = ("support", "last layer", "kNN", "interval width")


@dataclass(frozen=True)
class ForeignFit:
    """How well scores of one network tell foreign inputs from test inputs.

    Attributes:
        name: of the set.
        kind: of the foreign inputs.
        seed: of the rows.
        rows: that the network was trained on.
        auroc: of every score.
    """

    name: str
    kind: str
    seed: int
    rows: int
    auroc: dict[str, float]


@dataclass(frozen=True)
class MedianFit:
    """The median of `support` over the test inputs of one network.

    Attributes:
        name: of the set.
        seed: of the rows.
        rows: that the network was trained on.
        noise: deviation of the noise that was added to the targets, in deviations of these.
        median: of `support`.
    """

    name: str
    seed: int
    rows: int
    noise: float
    median: float


def foreign_fits(names: Sequence[str], seeds: Sequence[int]) -> Iterator[ForeignFit]:
    """Every kind of foreign inputs on every set."""
    for name in names:
        count = len(table(name)[0])
        rows = min(ROWS, int(SHARE * count), count - 100)
        parts = [own for seed in seeds if (own := split(name, rows, seed)) is not None]
        for seed, part, network in zip(seeds, parts, networks(parts, EPOCHS, 0), strict=True):
            scores, x = _Scores(network, part, seed), part.judged[0]
            inside = scores(x)
            for kind, foreign in (("permuted", shuffled(x, seed)), ("extrapolated", 3 * x)):
                yield ForeignFit(name, kind, seed, rows, _ranked(inside, scores(foreign)))
        shifts = [shifted(name, rows, seed) for seed in seeds]
        trained = networks([part for part, _ in shifts], EPOCHS, 0)
        for seed, (part, own), network in zip(seeds, shifts, trained, strict=True):
            scores, x = _Scores(network, part, seed), part.judged[0]
            yield ForeignFit(name, "shifted", seed, len(part.fit[0]), _ranked(scores(x[:own]), scores(x[own:])))


def median_fits(
    names: Sequence[str], seeds: Sequence[int], sizes: Sequence[int] = SIZES, noises: Sequence[float] = (0.0, 1.0)
) -> Iterator[MedianFit]:
    """Medians over numbers of rows and noises of the targets, of the sets that are large enough."""
    for name in names:
        for rows in sizes:
            parts = [own for seed in seeds if (own := split(name, rows, seed)) is not None]
            for noise in noises if parts else ():
                noisy = [_noisy(part, noise, seed) for seed, part in zip(seeds, parts, strict=True)]
                for seed, part, network in zip(seeds, noisy, networks(noisy, EPOCHS, 0), strict=True):
                    support = fitted(network, part, seed, epochs=1, folds=0).predict(part.judged[0]).support
                    yield MedianFit(name, seed, rows, noise, float(support.median()))


def fitted(network: nn.Module, part: Split, seed: int, **settings: object) -> sp.RegressionPredictor:
    """Our default with training residuals, which `support` does not depend on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.SplitPointWarning)
        method = sp.SplitPointRegressor(LEVEL, **{"residuals": "loo", **settings})  # type: ignore[arg-type]
        return method.fit(network, part.fit, seed=seed, progress=False)


class _Scores:
    """Scores of one network by name."""

    def __init__(self, network: nn.Module, part: Split, seed: int) -> None:
        self.uq = fitted(network, part, seed)
        self.last = fitted(network, part, seed, layer=self.uq.layer, epochs=1, folds=0)
        self.known = part.fit[0]

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        out = self.uq.predict(x)
        near = torch.cat([torch.cdist(own, self.known).kthvalue(NEIGHBOUR, 1).values for own in x.split(500)])
        width = (out.upper - out.lower).flatten()
        values = (out.support.flatten(), self.last.predict(x).support.flatten(), near, width)
        return dict(zip(SCORES, values, strict=True))


def _ranked(inside: dict[str, Tensor], outside: dict[str, Tensor]) -> dict[str, float]:
    return {score: auroc(inside[score], outside[score]) for score in SCORES}


def shuffled(x: Tensor, seed: int) -> Tensor:
    """The inputs (N, C) with every column in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([column[torch.randperm(len(x), generator=generator)] for column in x.T], 1)


def shifted(name: str, rows: int, seed: int) -> tuple[Split, int]:
    """Rows to fit on below the 80% quantile of the first principal component, and rows to judge from both sides.

    Also the number of judged rows from below, which come first.
    """
    x, y = table(name)
    units = (x - x.mean(0)) / x.std(0).clamp(min=1e-9)
    place = units @ torch.linalg.svd(units, full_matrices=False).Vh[0]
    generator = torch.Generator().manual_seed(seed)
    below, beyond = (
        own[torch.randperm(len(own), generator=generator)]
        for own in ((place <= place.quantile(0.8)).nonzero()[:, 0], (place > place.quantile(0.8)).nonzero()[:, 0])
    )
    count = min(rows, int(0.8 * len(below)))
    inside = below[count:][:1000]
    return standardised((x, y), below[:count], torch.cat([inside, beyond[:1000]])), len(inside)


def _noisy(part: Split, noise: float, seed: int) -> Split:
    x, y = part.fit
    return Split((x, y + noise * torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))), part.judged)


# Tables


def foreign_table(fits: Iterable[ForeignFit]) -> str:
    """AUROC by set and kind of foreign inputs, mean and deviation over seeds, and means over the sets."""
    found = list(fits)
    lines = [f"| set | foreign | {' | '.join(SCORES)} |", "|---|---|" + "---:|" * len(SCORES)]
    for name in dict.fromkeys(own.name for own in found):
        for kind in FOREIGN:
            some = [own for own in found if own.name == name and own.kind == kind]
            lines.append(
                f"| {name} | {kind} | " + " | ".join(_mean(own.auroc[s] for own in some) for s in SCORES) + " |"
            )
    for kind in FOREIGN:
        some = [own for own in found if own.kind == kind]
        means = (f"{fmean(own.auroc[score] for own in some):.3f}" for score in SCORES)
        lines.append(f"| all | {kind} | {' | '.join(means)} |")
    return "\n".join(lines)


def median_table(fits: Iterable[MedianFit]) -> str:
    """Medians of `support` by number of rows, and in brackets the ratio of those with noise to those without."""
    found = list(fits)
    sizes = sorted({own.rows for own in found})
    lines = [f"| set | {' | '.join(f'{rows} rows' for rows in sizes)} |", "|---|" + "---:|" * len(sizes)]
    for name in dict.fromkeys(own.name for own in found):
        cells = []
        for rows in sizes:
            some = [own for own in found if (own.name, own.rows) == (name, rows)]
            clean, noisy = ([own.median for own in some if bool(own.noise) is added] for added in (False, True))
            cells.append(f"{fmean(clean):.4f} (x{fmean(noisy) / fmean(clean):.2f})" if clean and noisy else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: Iterable[float]) -> str:
    known = list(values)
    return f"{fmean(known):.3f}" + (f" ± {stdev(known):.3f}" if len(known) > 1 else "")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", nargs="+", default=available(), choices=available(), help="data sets")
    parser.add_argument("--seeds", type=int, default=3, help="splits of each set")
    given = parser.parse_args()
    seeds = range(given.seeds)
    print(foreign_table(foreign_fits(given.sets, seeds)), end="\n\n")
    print(median_table(median_fits(given.sets, seeds)))


if __name__ == "__main__":
    main()
