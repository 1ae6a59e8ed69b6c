"""Methods compared over data sets: average ranks, Friedman test, Nemenyi critical difference (Demšar 2006)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from splitpoint.report.tables import Table, printed_loss

QUANTILES = (
    *(1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164),
    *(3.219, 3.268, 3.313, 3.354, 3.391, 3.426, 3.458, 3.489, 3.517, 3.544),
)
"""Studentised range at 0.05 over the square root of two, for 2 to 20 methods: Demšar's Table 5 (a) up to ten."""

LEAST_DATASETS = 3


@dataclass(frozen=True)
class Comparison:
    """Methods over data sets.

    Attributes:
        ranks: average rank of every method, best first; 1 is best.
        datasets: how many the ranks are averaged over.
        chi_square: Friedman's statistic, ``12 N / (k (k + 1)) (sum R^2 - k (k + 1)^2 / 4)``.
        p: its tail probability; small if the methods are not all alike.
        difference: ranks that differ by less are not told apart at 0.05.
        groups: largest runs of methods that are not told apart, as names of the first and the last.
        left_out: methods without a number on every one of these data sets.
    """

    ranks: Mapping[str, float]
    datasets: int
    chi_square: float
    p: float
    difference: float
    groups: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...] = ()


def rank(losses: Sequence[float]) -> list[float]:
    """Ranks from 1 for the smallest; equal values share the mean of theirs.

    >>> rank([0.3, 0.1, 0.3, 0.2])
    [3.5, 1.0, 3.5, 2.0]
    """
    return [sum(other < loss for other in losses) + (losses.count(loss) + 1) / 2 for loss in losses]


def critical_difference(methods: int, datasets: int) -> float:
    """Nemenyi's ``q sqrt(k (k + 1) / (6 N))`` at 0.05, for 2 to 20 methods.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    return QUANTILES[methods - 2] * math.sqrt(methods * (methods + 1) / (6 * datasets))


def friedman(ranks: Sequence[float], datasets: int) -> tuple[float, float]:
    """Friedman's chi-square of average ranks, and its tail probability with k - 1 degrees of freedom."""
    k = len(ranks)
    statistic = 12 * datasets / (k * (k + 1)) * (sum(r * r for r in ranks) - k * (k + 1) ** 2 / 4)
    statistic = max(statistic, 0.0)
    degrees, value = (torch.tensor(part, dtype=torch.float64) for part in ((k - 1) / 2, statistic / 2))
    return statistic, float(torch.special.gammaincc(degrees, value))


def compare(losses: Mapping[str, Sequence[float]], left_out: tuple[str, ...] = ()) -> Comparison:
    """Compare methods by their losses, one for each data set, in the same order."""
    datasets = len(next(iter(losses.values())))
    by_dataset = [rank([values[index] for values in losses.values()]) for index in range(datasets)]
    means = [sum(column) / datasets for column in zip(*by_dataset, strict=True)]
    ranks = dict(sorted(zip(losses, means, strict=True), key=lambda pair: pair[1]))
    difference = critical_difference(len(ranks), datasets)
    return Comparison(ranks, datasets, *friedman(means, datasets), difference, _groups(ranks, difference), left_out)


def _groups(ranks: Mapping[str, float], difference: float) -> tuple[tuple[str, str], ...]:
    """Runs of two and more that span less than the difference and are not inside a longer run."""
    methods = list(ranks)
    found: list[tuple[int, int]] = []
    for first, name in enumerate(methods):
        last = max(i for i in range(first, len(methods)) if ranks[methods[i]] - ranks[name] < difference)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return tuple((methods[first], methods[last]) for first, last in found)


def compare_rows(table: Table) -> Comparison | None:
    """Compare the rows of a table; None with fewer than two rows or three data sets, or if the metric has no best.

    Data sets count where more than half of the rows have a number; rows count that have one on all of these.
    """
    if any(column.metric.better == "none" for column in table.columns):
        return None
    whole = {key for key, entry in table.entries.items() if entry.whole}
    indices = range(len(table.columns))
    kept = [i for i in indices if 2 * sum((row, i) in whole for row in table.rows) > len(table.rows)]
    rows = [row for row in table.rows if all((row, i) in whole for i in kept)]
    if len(kept) < LEAST_DATASETS or not 2 <= len(rows) <= len(QUANTILES) + 1:
        return None
    losses = {row: [printed_loss(table.entries[row, i], table.columns[i]) for i in kept] for row in rows}
    return compare(losses, tuple(row for row in table.rows if row not in rows))
