"""Cells of tables: mean ± standard error, the place in the column, and the verdict on the published figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal

from splitpoint.metrics import Metric
from splitpoint.report.facts import Problem
from splitpoint.report.published import Figure

Verdict = Literal["reproduced", "better", "worse", "failed"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "better", "worse", "failed")
SIGNS: dict[str, str] = dict(zip(VERDICTS, "=▲▼✕", strict=True))
NO_VERDICT = "○"
"""Signs of the verdicts, which are told apart without colour, and of a published figure without one."""

LEAST_DECIMALS, MOST_DECIMALS = 2, 6
SIGNIFICANT = 3


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        trials: how many were run.
        failed: of these, how many failed.
        undefined: of these, in how many the metric could not be computed.
        mean: over the trials; NaN if any failed or is undefined, since the rest would flatter.
        stderr: standard deviation (n - 1) over the square root of n; NaN below two trials.
        published: the published figure.
        verdict: on it; None where the two cannot be compared.
        place: 1 for the best at the printed precision, equal values sharing it; None where there is no ranking.
    """

    trials: int
    failed: int = 0
    undefined: int = 0
    mean: float = math.nan
    stderr: float = math.nan
    published: Figure | None = None
    verdict: Verdict | None = None
    place: int | None = None

    @property
    def whole(self) -> bool:
        """Whether every trial gave a number."""
        return math.isfinite(self.mean)

    def text(self, decimals: int) -> str:
        """Mean ± standard error, or how many trials gave none."""
        if self.failed:
            return f"{self.failed} of {self.trials} failed"
        if self.undefined:
            return "undefined" if self.undefined == self.trials else f"{self.undefined} of {self.trials} undefined"
        if not math.isfinite(self.stderr):
            return number(self.mean, decimals)
        return f"{number(self.mean, decimals)} ± {number(self.stderr, decimals)}"


@dataclass(frozen=True)
class Column:
    """A column: its title, what is measured on which problem, and the digits after the point."""

    title: str
    problem: Problem
    metric: Metric
    decimals: int


@dataclass(frozen=True)
class Table:
    """Rows of entries: one for each method, or for each value of a setting.

    `entries` holds (row, index of the column); a combination that was not run is absent.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    entries: Mapping[tuple[str, int], Entry]

    @property
    def verdicts(self) -> Tally:
        """How its cells compare with the published ones."""
        return Tally.of(list(self.entries.values()))


@dataclass(frozen=True)
class Tally:
    """Cells by verdict. `zeros` are reproduced only in that the published figure is printed as zero."""

    reproduced: int = 0
    better: int = 0
    worse: int = 0
    failed: int = 0
    zeros: int = 0

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Tally:
        """Count them."""
        found = [entry.verdict for entry in entries]
        zeros = sum(e.verdict == "reproduced" and e.published is not None and e.published.mean == 0 for e in entries)
        reproduced, better, worse, failed = map(found.count, VERDICTS)
        return cls(reproduced, better, worse, failed, zeros)

    @property
    def compared(self) -> int:
        """Number of cells with a verdict."""
        return self.reproduced + self.better + self.worse + self.failed

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        if not self.compared:
            return "nothing to compare with"
        share = f"{self.reproduced} of {self.compared} reproduced ({100 * self.reproduced / self.compared:.0f}%)"
        zeros = f", {self.zeros} of them printed as zero" if self.zeros else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{share}{zeros}; {self.better} better, {self.worse} worse{failed}"


def summarised(values: Sequence[float | None]) -> Entry:
    """The entry of all trials: None for one that failed, NaN for one without the number.

    >>> summarised([1.0, 2.0, 3.0]).text(2), summarised([1.0, None, 3.0]).text(2)
    ('2.00 ± 0.58', '1 of 3 failed')
    """
    trials = len(values)
    numbers = [value for value in values if value is not None]
    finite = [value for value in numbers if math.isfinite(value)]
    failed, undefined = trials - len(numbers), len(numbers) - len(finite)
    if len(finite) < trials or not trials:
        return Entry(trials, failed, undefined)
    mean = statistics.fmean(finite)
    squares = math.fsum((value - mean) ** 2 for value in finite)
    return Entry(trials, mean=mean, stderr=math.sqrt(squares / (trials - 1) / trials) if trials > 1 else math.nan)


def with_verdict(ours: Entry, figure: Figure | None, metric: Metric, *, comparable: bool = True) -> Entry:
    """The entry with the published figure and the verdict on it.

    "reproduced" means a difference of at most ``2 sqrt(se1^2 + se2^2)`` plus half a unit of the last printed digit, as
    published figures are rounded. Where the paper prints no standard error the figure may come from one run, and the
    standard deviation between our trials stands in for it. A single trial of ours gets no verdict; a cell with failed
    trials has failed to reproduce the figure.
    """
    if figure is None:
        return ours
    if comparable and not ours.whole:
        return replace(ours, published=figure, verdict="failed")
    if not comparable or not math.isfinite(ours.stderr) or metric.better == "none":
        return replace(ours, published=figure)
    theirs = figure.stderr if math.isfinite(figure.stderr) else ours.stderr * math.sqrt(ours.trials)
    tolerance = 2 * math.hypot(ours.stderr, theirs) + figure.unit / 2
    verdict: Verdict = "reproduced"
    if abs(ours.mean - figure.mean) > tolerance * (1 + 1e-9):
        verdict = "better" if metric.loss(ours.mean) < metric.loss(figure.mean) else "worse"
    return replace(ours, published=figure, verdict=verdict)


def decimals(entries: Sequence[Entry]) -> int:
    """Digits after the point of a column: up to the first one of the median standard error, since more are noise.

    Without standard errors, three significant ones of the median. Between 2 and 6.

    >>> decimals([Entry(20, mean=0.0881, stderr=0.0023)]), decimals([Entry(20, mean=33.4, stderr=0.89)])
    (3, 2)
    """
    errors = [entry.stderr for entry in entries if entry.whole and entry.stderr > 0]
    sizes = [abs(entry.mean) for entry in entries if entry.whole and entry.mean]
    if not errors and not sizes:
        return LEAST_DECIMALS
    wanted, typical = (1, errors) if errors else (SIGNIFICANT, sizes)
    places = wanted - 1 - math.floor(math.log10(statistics.median(typical)))
    return min(max(places, LEAST_DECIMALS), MOST_DECIMALS)


def number(value: float, decimals: int) -> str:
    """A number with that many decimals; very large ones in powers of ten.

    >>> number(3.14159, 2), number(2.5e7, 2), number(-0.0001, 2)
    ('3.14', '2.50e+07', '0.00')
    """
    return f"{value:.2e}" if abs(value) >= 1e6 else f"{round(value, decimals) + 0.0:.{decimals}f}"


def placed(entries: Mapping[str, Entry], column: Column) -> dict[str, Entry]:
    """A column with places, dense: 1, 1, 2 for two equal bests and the next. Only whole entries have one."""
    if column.metric.better == "none":
        return dict(entries)
    losses = {row: printed_loss(entry, column) for row, entry in entries.items() if entry.whole}
    places = {loss: place for place, loss in enumerate(sorted(set(losses.values())), start=1)}
    return {
        row: replace(entry, place=places[losses[row]]) if row in losses and len(losses) > 1 else entry
        for row, entry in entries.items()
    }


def printed_loss(entry: Entry, column: Column) -> float:
    """The loss of an entry as it is printed, so that what looks equal is equal."""
    return column.metric.loss(float(number(entry.mean, column.decimals)))
