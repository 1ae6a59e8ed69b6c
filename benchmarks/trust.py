"""Whether the defaults can be trusted: scores at foreign inputs and errors beside free rivals, coverage by overfitting.

    SPLITPOINT_DATA=DATA python benchmarks/trust.py [--quick] [--parts classes support coverage] [--seeds N]

Protocol. Classifiers: the cells of `development.py` (built where they are missing; a source without its package or
data is skipped), the default `SplitPointClassifier` fitted on at most so many training rows of a class, with half of
the test rows as calibration rows or without, judged on the other half; every score larger for less trust. "Flags" is
the share of foreign rows above what 5% of the judged rows exceed. Tables: networks of two hidden layers of 64 ReLU
units, Adam at 1e-3 in batches of 64, on random rows of the first customary training part of UCI sets (test parts are
never read) and of a made-up set; everything standardised by the rows of the fit. `--quick` takes the cells that are
built in seconds, fewer sizes and one seed. Figures at the end are counts over all lines, none left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import development
import trust_classes as classes
import trust_support as support
import trust_tables as tables
from development_cell import Cell, MissingError

QUICK_CELLS = ("overfit_mlp", "fsdd", "intents", "lenet_mnist", "lenet_fashion")
SIZES, QUICK_SIZES = (1, 2, 5, 20, 100, 0), (1, 5, 100)
"""Most rows of a class; 0 for all."""

QUICK_SETS = ("concrete", "kin8nm", tables.FRIEDMAN)
ROWS, QUICK_ROWS = (60, 300, 3000), (60, 300)
EPOCHS = (10, 60, 300)
SETTINGS = ("loo", "auto", "refit")
BAND = (0.87, 0.94)
SHORT, FINE = 0.85, 0.88
"""Coverage below which a fit has to warn, and from which it must not."""


@dataclass(frozen=True)
class Bar:
    """One promise: what was asked, on how many lines it holds, of how many."""

    asked: str
    held: int
    lines: int
    worst: float

    def __str__(self) -> str:
        share = f"{self.held / self.lines:.1%}" if self.lines else "no line"
        return f"| {self.asked} | {self.held} of {self.lines} | {share} | {self.worst:+.3f} |"


def bar(asked: str, margins: Sequence[float]) -> Bar:
    """The promise that every margin is at least 0."""
    return Bar(asked, sum(margin >= 0 for margin in margins), len(margins), min(margins, default=float("nan")))


def header(*names: str) -> None:
    """The head of a Markdown table."""
    print("\n| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|", flush=True)


# Classifiers


def cells(names: Iterable[str], folder: Path) -> Iterable[tuple[str, Cell]]:
    """Cells from their files, built where they are missing; sources that cannot be built are named and left out."""
    for name in names:
        path = folder / f"{name}.npz"
        if not path.exists():
            try:
                development.SOURCES[name]().write(path)
            except MissingError as error:
                print(f"\n{name} is skipped. {error}", flush=True)
                continue
        yield name, Cell.read(path)


def class_lines(names: Iterable[str], folder: Path, sizes: Sequence[int], seeds: Sequence[int]) -> list[Bar]:
    """A line for each fit and foreign set, and what holds on them."""
    header(
        "cell", "rows", "of a class", "foreign", *classes.RANKED, "flags", "energy flags", "errors", "entropy", "warns"
    )
    found = []
    for name, cell in cells(names, folder):
        for fit in classes.fits(name, cell, sizes, seeds):
            found.append(fit)
            errors = ["", ""] if fit.errors is None else [f"{fit.errors[n]:.3f}" for n in ("total", "entropy")]
            warned = ", ".join(check.name for check in fit.checks if check.verdict == "warn")
            for which, scores in fit.foreign.items():
                own = [
                    f"{fit.cell}{' + calibration' if fit.calibrated else ''}",
                    fit.rows,
                    fit.per_class or "all",
                    which,
                ]
                figures = [f"{scores[score]:.3f}" for score in classes.RANKED]
                flags = [f"{scores[f'caught {score}']:.3f}" for score in ("support", "energy")]
                print("| " + " | ".join(map(str, [*own, *figures, *flags, *errors, warned])) + " |", flush=True)
    foreign = [scores for fit in found for scores in fit.foreign.values()]
    ahead = [own["support"] - max(own[free] for free in classes.FREE) + 0.01 for own in foreign]
    flagged = [own["caught support"] - own["caught energy"] + 0.03 for own in foreign]
    ranked = [fit.errors["total"] - fit.errors["entropy"] + 0.003 for fit in found if fit.errors is not None]
    return [
        bar("AUROC(OOD) of support >= best of energy, max-probability, entropy - .01", ahead),
        bar("AUROC(OOD) of support >= .5", [own["support"] - 0.5 for own in foreign]),
        bar("flags at 5% false alarms >= energy - .03", flagged),
        bar("AUROC(error) of total >= entropy of the network - .003", ranked),
    ]


# Tables


def support_lines(names: Sequence[str], seeds: Sequence[int]) -> list[Bar]:
    """Tables of `trust_support.py`, and what holds on every network."""
    foreign = list(support.foreign_fits(names, seeds))
    print(f"\n{support.foreign_table(foreign)}", flush=True)
    medians = list(support.median_fits(names, seeds))
    print(f"\n{support.median_table(medians)}", flush=True)
    ahead = [
        own.auroc["support"] - own.auroc["last layer"] + 0.01
        for own in foreign
        if own.kind in ("permuted", "extrapolated")
    ]
    by_place = {(own.name, own.seed, own.rows, own.noise): own.median for own in medians}
    falls = [
        1 - by_place[name, seed, 2 * rows, noise] / median
        for (name, seed, rows, noise), median in by_place.items()
        if (name, seed, 2 * rows, noise) in by_place
    ]
    moved = [
        1.3 - max(median / by_place[name, seed, rows, 0.0], by_place[name, seed, rows, 0.0] / median)
        for (name, seed, rows, noise), median in by_place.items()
        if noise
    ]
    return [
        bar("AUROC(permuted, extrapolated inputs) of support >= leverage of the last layer - .01", ahead),
        bar("median support falls from n to 2n rows", falls),
        bar("noise of the targets, 0 to 1 sd, moves the median of support by less than 1.3x", moved),
    ]


def coverage_lines(names: Sequence[str], rows: Sequence[int], seeds: Sequence[int]) -> list[Bar]:
    """A line for each set, number of rows, length of training and setting, and what holds of all fits."""
    header(
        "set", "rows", "epochs", "residuals", "coverage at .90", "Winkler", "Spearman total", "width", "warns", "CPU s"
    )
    found: list[tables.CoverageFit] = []
    for fit in tables.coverage_fits(names, rows, EPOCHS, seeds, SETTINGS):
        found.append(fit)
        if fit.seed == seeds[-1]:
            print(coverage_line([own for own in found if own.place == fit.place]), flush=True)
    refitted = [fit for fit in found if fit.residuals == "refit"]
    plain = [fit for fit in found if fit.residuals == "loo"]
    means = [
        torch.tensor([f.coverage for f in refitted if (f.rows, f.epochs) == place]).mean().item()
        for place in dict.fromkeys((f.rows, f.epochs) for f in refitted)
    ]
    short, fine = [f for f in plain if f.coverage < SHORT], [f for f in plain if f.coverage >= FINE]
    ranked = [f.spearman - f.by_width + 0.01 for f in found if f.residuals == "auto"]
    return [
        bar(f"refit: mean coverage within {BAND} for every number of rows and epochs", [within(m) for m in means]),
        bar(f"refit: coverage of a single fit within {BAND}", [within(f.coverage) for f in refitted]),
        bar(f"without refit: fits that cover less than {SHORT} warn", [float(f.warned) - 1 for f in short]),
        bar(f"without refit: fits that cover {FINE} or more do not", [-float(f.warned) for f in fine]),
        bar("default: Spearman of total with the error >= that of the interval's width - .01", ranked),
    ]


def within(coverage: float) -> float:
    """How far inside the band a coverage is, negative outside."""
    return min(coverage - BAND[0], BAND[1] - coverage)


def coverage_line(fits: Sequence[tables.CoverageFit]) -> str:
    """Means and standard errors over seeds."""

    def mean(name: str) -> str:
        values = torch.tensor([float(getattr(fit, name)) for fit in fits], dtype=torch.float64)
        error = f" ± {values.std() / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
        return f"{values.mean():.3f}{error}"

    first = fits[0]
    figures = [mean(name) for name in ("coverage", "winkler", "spearman", "by_width")]
    warned = f"{sum(fit.warned for fit in fits)} of {len(fits)}"
    spent = sum(fit.seconds for fit in fits) / len(fits)
    return "| " + " | ".join([*map(str, first.place), *figures, warned, f"{spent:.1f}"]) + " |"


PARTS = ("classes", "support", "coverage")


def main() -> None:
    """Print the tables, then what holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cells, sizes and seeds: minutes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which tables")
    parser.add_argument("--seeds", type=int, help="draws of the rows (default: 3; 1, and 2 for coverage, if quick)")
    parser.add_argument("--cells", type=Path, default=Path("out/development"), help="where development cells are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, quick, found, there = time.perf_counter(), options.quick, [], tables.available()
    names = [name for name in QUICK_SETS if name in there] if quick else there
    seeds = range(options.seeds or (1 if quick else 3))
    if "classes" in options.parts:
        cell_names, sizes = (QUICK_CELLS, QUICK_SIZES) if quick else (tuple(development.SOURCES), SIZES)
        found += class_lines(cell_names, options.cells, sizes, seeds)
    if "support" in options.parts:
        found += support_lines(names, seeds)
    if "coverage" in options.parts:
        draws = range(options.seeds or (2 if quick else 3))
        found += coverage_lines(names, QUICK_ROWS if quick else ROWS, draws)
    header("promise", "holds on", "share", "worst margin")
    print("\n".join(map(str, found)), flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
