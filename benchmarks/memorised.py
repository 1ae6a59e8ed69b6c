"""Intervals without calibration data on networks drawn at random: what they cover, and whether a fit says so.

    python benchmarks/memorised.py [--networks 60] [--first 0] [--rows 60 300 1000] [--jobs 2]

Protocol. Network number i is drawn by the seed i: one of eight laws that are made up (skewed, heavy-tailed, outliers,
noise that depends on the input, more inputs than matter), one of the numbers of `--rows`, one to four hidden layers of
32, 64 or 128 units with ReLU, tanh, batch norm, layer norm or dropout, with or without weight decay, AdamW at 1e-3 or
3e-3 in batches of 32 for 10, 60 or 300 epochs. It is judged on 2,000 fresh rows at the level .90, once with the default
and once with leave-one-out residuals. Thresholds were chosen on other draws of such networks.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import splitpoint as sp
from splitpoint.metrics import picp, spearman, winkler
from trust_tables import Split, standardised

LEVEL, JUDGED = 0.9, 2000
SETTINGS = ("auto", "loo")
ROWS = (60, 300, 1000)
SHORT, FINE = 0.85, 0.88
"""Coverage below which a fit has to warn, and from which it must not."""

Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def _bumps(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.rand(rows, 5, generator=g)
    return x, 8 * (4 * x[:, 0]).sin() - 10 * x[:, 1] * x[:, 2] + 5 * (0.1 + x[:, 3]).log() + _normal(rows, g)


def _waves(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = 4 * torch.rand(rows, 4, generator=g) - 2
    return x, (3 * x[:, 0]).sin() + x[:, 1].square() + (0.05 + x[:, 0].abs() / 2) * _normal(rows, g)


def _skewed(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 6, generator=g)
    noise = -torch.rand(rows, generator=g).log()
    return x, x[:, 0] * x[:, 1] + (0.2 + 0.8 * (x[:, 2] > 0)) * noise


def _heavy(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 3, generator=g)
    scale = torch.stack([_normal(rows, g) for _ in range(3)]).square().mean(0).sqrt()
    return x, x[:, 0].square() + x[:, 1] + 0.5 * _normal(rows, g) / scale


def _outliers(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 10, generator=g)
    wild = 5 * (torch.rand(rows, generator=g) < 0.05) * _normal(rows, g)
    return x, x[:, :6].sum(1) / 6**0.5 + 0.1 * _normal(rows, g) + wild


def _wide(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 100, generator=g)
    return x, x[:, :10].sum(1) + 0.5 * _normal(rows, g)


def _clean(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.rand(rows, 4, generator=g)
    return x, (x[:, 0].square() + (x[:, 1] * x[:, 2] - x[:, 3] / 4).square()).sqrt()


def _noisy(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 8, generator=g)
    return x, x[:, 0] + 2 * _normal(rows, g)


def _normal(rows: int, g: torch.Generator) -> Tensor:
    return torch.randn(rows, generator=g)


LAWS: dict[str, Draw] = {
    "bumps": _bumps,
    "waves": _waves,
    "skewed": _skewed,
    "heavy tails": _heavy,
    "outliers": _outliers,
    "100 inputs": _wide,
    "no noise": _clean,
    "mostly noise": _noisy,
}
KINDS = ("relu", "relu", "tanh", "batch norm", "layer norm", "dropout", "batch norm, dropout")


@dataclass(frozen=True)
class Case:
    """One network with its rows."""

    name: str
    rows: int
    network: nn.Module
    split: Split


def case(number: int, sizes: Sequence[int] = ROWS) -> Case:
    """Network `number`, trained on one of so many rows."""
    g = torch.Generator().manual_seed(number)

    def one(choices: Sequence[object]) -> object:
        return choices[int(torch.randint(len(choices), (1,), generator=g))]

    law, rows, kind = one(tuple(LAWS)), one(sizes), one(KINDS)
    width, depth, epochs = one((32, 64, 128)), one((1, 2, 3, 4)), one((10, 60, 300))
    decay, rate = one((0.0, 1e-2)), one((1e-3, 3e-3))
    x, y = LAWS[law](rows + JUDGED, g)
    split = standardised((x, y[:, None]), torch.arange(rows), torch.arange(rows, rows + JUDGED))
    with torch.random.fork_rng():
        torch.manual_seed(number)
        network = perceptron(x.shape[1], width, depth, str(kind))
        optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
        for _ in range(epochs):
            for places in torch.randperm(rows).split(32):
                if len(places) > 1:
                    optimiser.zero_grad()
                    (network(split.fit[0][places]) - split.fit[1][places]).square().mean().backward()
                    optimiser.step()
    return Case(f"{law}, {depth} x {width} {kind}, {epochs} epochs", rows, network.eval(), split)


def perceptron(inputs: int, width: int, depth: int, kind: str) -> nn.Sequential:
    """Hidden layers of one width, with what the kind says between them."""
    layers: list[nn.Module] = []
    for place in range(depth):
        layers.append(nn.Linear(width if place else inputs, width))
        layers += [nn.BatchNorm1d(width)] if "batch norm" in kind else []
        layers += [nn.LayerNorm(width)] if "layer norm" in kind else []
        layers.append(nn.Tanh() if kind == "tanh" else nn.ReLU())
        layers += [nn.Dropout(0.2)] if "dropout" in kind else []
    return nn.Sequential(*layers, nn.Linear(width, 1))


@dataclass(frozen=True)
class Fit:
    """What the intervals of one network are worth."""

    number: int
    name: str
    rows: int
    residuals: str
    ratio: float
    expected: float
    coverage: float
    winkler: float
    total: float
    by_width: float
    warned: bool
    memorised: bool
    seconds: float


def fits(number: int, sizes: Sequence[int], settings: Sequence[str]) -> list[Fit]:
    """One for every setting."""
    torch.set_num_threads(1)
    own, found = case(number, sizes), []
    (x, y), (x_new, y_new) = own.split.fit, own.split.judged
    with torch.no_grad():
        errors = [float((own.network(a) - b).square().mean().sqrt()) for a, b in ((x, y), (x_new, y_new))]
    for residuals in settings:
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sp.SplitPointWarning)
            uq = sp.SplitPointRegressor(LEVEL, residuals=residuals).fit(own.network, (x, y), progress=False)
        seconds, out = time.process_time() - began, uq(x_new)
        error = (out.mean - y_new).abs()
        checks = {check.name: check for check in uq.checks}
        found.append(
            Fit(
                number,
                own.name,
                own.rows,
                residuals,
                errors[1] / max(errors[0], 1e-12),
                checks["memorised base"].value,
                picp(out, y_new),
                winkler(out, y_new),
                spearman(out.total, error),
                spearman(out.upper - out.lower, error),
                any(check.verdict == "warn" for check in uq.checks),
                checks["memorised base"].verdict == "warn",
                seconds,
            )
        )
    return found


def line(fit: Fit) -> str:
    """A line of the table."""
    figures = [f"{fit.ratio:.2f}", f"{fit.expected:.2f}", f"{fit.coverage:.3f}", f"{fit.winkler:.2f}"]
    return (
        f"| {fit.number} | {fit.name} | {fit.rows} | {fit.residuals} | "
        + " | ".join([*figures, "yes" if fit.warned else "no", f"{fit.seconds:.1f}"])
        + " |"
    )


def summary(found: Sequence[Fit], sizes: Sequence[int], settings: Sequence[str]) -> list[str]:
    """Lines that count."""
    lines = ["| what | " + " | ".join(settings) + " |", "|---|" + "---|" * len(settings)]
    groups = [[fit for fit in found if fit.residuals == residuals] for residuals in settings]

    def add(what: str, say: Callable[[list[Fit]], str]) -> None:
        lines.append(f"| {what} | " + " | ".join(map(say, groups)) + " |")

    def share(part: Sequence[Fit], held: Callable[[Fit], bool]) -> str:
        return f"{sum(map(held, part))} of {len(part)}"

    def mean(values: Sequence[float]) -> str:
        spread = torch.tensor(values, dtype=torch.float64)
        return f"{spread.mean():.3f} ± {spread.std() / len(values) ** 0.5:.3f}"

    add("mean coverage", lambda part: mean([fit.coverage for fit in part]))
    add("lowest coverage", lambda part: f"{min(fit.coverage for fit in part):.3f}")
    for rows in sizes:
        add(
            f"mean coverage, {rows:,} rows",
            lambda part, rows=rows: mean([fit.coverage for fit in part if fit.rows == rows]),
        )
    add(f"coverage below {SHORT}", lambda part: share(part, lambda fit: fit.coverage < SHORT))
    add(
        "of these, fits that warned",
        lambda part: share([fit for fit in part if fit.coverage < SHORT], lambda fit: fit.warned),
    )
    add(
        f"coverage of {FINE} or more, warned of a memorised base",
        lambda part: share([fit for fit in part if fit.coverage >= FINE], lambda fit: fit.memorised),
    )
    add("mean logarithm of the Winkler score", lambda part: mean([math.log(fit.winkler) for fit in part]))
    add("Spearman of total less that of the width", lambda part: mean([fit.total - fit.by_width for fit in part]))
    add("CPU seconds of a fit", lambda part: mean([fit.seconds for fit in part]))
    return lines


def main() -> None:
    """Print a line for every fit, then what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first network")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows that are drawn from")
    parser.add_argument("--residuals", nargs="+", choices=SETTINGS, default=SETTINGS, help="settings")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    print("| number | network | rows | residuals | error, new / training | expected | coverage | Winkler | warns | s |")
    print("|---" * 10 + "|", flush=True)
    found: list[Fit] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        work = partial(fits, sizes=options.rows, settings=options.residuals)
        for own in pool.map(work, range(options.first, options.first + options.networks)):
            found += own
            print("\n".join(map(line, own)), flush=True)
    print("\n" + "\n".join(summary(found, options.rows, options.residuals)))


if __name__ == "__main__":
    main()
