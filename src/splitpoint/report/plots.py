"""Figures of a section: critical differences, coverage against width, and what a setting does."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from splitpoint.metrics import LEVEL
from splitpoint.report import facts, svg
from splitpoint.report.ranks import Comparison
from splitpoint.report.sections import Section
from splitpoint.report.tables import Entry, Table

WIDTH = 860
SIDE = 260


def critical_difference(comparison: Comparison) -> str:
    """Average ranks on an axis, best at the left; a bar joins methods that are not told apart."""
    ranks = comparison.ranks
    count = len(ranks)
    scale = svg.Scale(1, count, SIDE, WIDTH - SIDE)
    axis = 44
    below = axis + 20
    first_label = below + 13 * len(comparison.groups) + 12
    half = (count + 1) // 2
    height = first_label + 22 * half
    parts = [svg.line(scale(1), axis, scale(count), axis, "axis")]
    for tick in range(1, count + 1):
        parts += [svg.line(scale(tick), axis - 5, scale(tick), axis, "axis")]
        parts += [svg.text(scale(tick), axis - 10, str(tick), "small", "middle")]
    reach = min(scale(1 + comparison.difference), scale(count))
    parts += [svg.line(scale(1), 12, reach, 12, "group"), svg.line(scale(1), 8, scale(1), 16, "axis")]
    parts += [svg.line(reach, 8, reach, 16, "axis")]
    parts += [svg.text(reach + 8, 16, f"critical difference {comparison.difference:.2f}", "small")]
    for place, (name, rank) in enumerate(ranks.items()):
        left = place < half
        y = first_label + 22 * (place if left else count - 1 - place)
        end = SIDE - 12 if left else WIDTH - SIDE + 12
        parts += [svg.curve([(scale(rank), axis), (scale(rank), y), (end, y)], "leader")]
        name_and_rank = f"{facts.title(name)}  {rank:.2f}" if left else f"{rank:.2f}  {facts.title(name)}"
        parts += [svg.text(end + (-6 if left else 6), y + 4, name_and_rank, "", "end" if left else "start")]
    for index, (first, last) in enumerate(comparison.groups):
        y = below + 13 * index
        parts += [svg.line(scale(ranks[first]) - 3, y, scale(ranks[last]) + 3, y, "group")]
    label = ", ".join(f"{facts.title(name)} {rank:.2f}" for name, rank in ranks.items())
    return svg.drawing(WIDTH, height, f"Average ranks: {label}.", parts)


class Mark(NamedTuple):
    """A method among coverages and widths: averages over the data sets, and the range of coverages."""

    method: str
    width: float
    coverage: float
    least: float
    most: float


def marks(section: Section) -> list[Mark]:
    """Mean coverage and geometric mean of the width, relative to the median method of each data set.

    Only methods with both numbers on every data set are shown, so that all are averages of the same thing.
    """
    found = {
        (row, problem): (section.entries[row, problem, "picp"].mean, section.entries[row, problem, "mpiw"].mean)
        for row in section.rows
        for problem in section.problems
        if all(_whole(section.entries.get((row, problem, name))) for name in ("picp", "mpiw"))
    }
    complete = [row for row in section.rows if all((row, problem) in found for problem in section.problems)]
    usual = {one: statistics.median(found[row, one][1] for row in complete) for one in section.problems if complete}
    shown = []
    for row in complete:
        coverages = [found[row, problem][0] for problem in section.problems]
        widths = [found[row, problem][1] / usual[problem] if usual[problem] else 0.0 for problem in section.problems]
        if min(widths) > 0:
            mean = statistics.fmean(coverages)
            shown.append(Mark(row, statistics.geometric_mean(widths), mean, min(coverages), max(coverages)))
    return shown


def _whole(entry: Entry | None) -> bool:
    return entry is not None and entry.whole


def coverage_against_width(shown: Sequence[Mark]) -> str:
    """A numbered mark for each method; a line spans its coverages on single data sets; the level is dashed."""
    left, right, top, bottom = 56, 560, 14, 330
    x = svg.Scale(*svg.around((mark.width for mark in shown), 0.1), left, right)
    low, high = svg.around([LEVEL, *(value for mark in shown for value in mark[2:])])
    y = svg.Scale(low, min(high, 1.01), bottom, top)
    parts = [svg.rectangle(left, top, right - left, bottom - top, "frame")]
    for tick in svg.ticks(x.low, x.high):
        parts += [svg.line(x(tick), bottom, x(tick), bottom + 5, "axis")]
        parts += [svg.text(x(tick), bottom + 19, svg.short(tick), "small", "middle")]
    for tick in svg.ticks(y.low, y.high):
        parts += [svg.line(left, y(tick), right, y(tick), "grid")]
        parts += [svg.text(left - 7, y(tick) + 4, svg.short(tick), "small", "end")]
    parts += [svg.line(left, y(LEVEL), right, y(LEVEL), "truth")]
    parts += [svg.text((left + right) / 2, bottom + 40, "width relative to the median method", "small", "middle")]
    parts += [svg.text(left + 6, top + 14, "coverage", "small")]
    for mark in shown:
        parts += [svg.line(x(mark.width), y(mark.least), x(mark.width), y(mark.most), "spread")]
    for number, mark in enumerate(shown, start=1):
        place = x(mark.width), y(mark.coverage)
        parts += [svg.circle(*place, 9, "mark"), svg.text(place[0], place[1] + 4, str(number), "inmark", "middle")]
        row = top + 12 + 24 * (number - 1)
        parts += [
            svg.circle(right + 28, row - 4, 9, "mark"),
            svg.text(right + 28, row, str(number), "inmark", "middle"),
        ]
        parts += [svg.text(right + 44, row, f"{facts.title(mark.method)}, {mark.coverage:.3f}")]
    label = "; ".join(f"{facts.title(m.method)}: coverage {m.coverage:.3f}, width {m.width:.2f}" for m in shown)
    height = max(bottom + 48, top + 24 * len(shown) + 12)
    return svg.drawing(WIDTH, height, f"Coverage against relative width. {label}.", parts)


def numeric(section: Section) -> bool:
    """Whether the section varies a setting that has at least two numbers among its values."""
    values = [facts.as_number(row) for row in section.rows]
    return bool(section.place.factor) and sum(value is not None for value in values) > 1


def dependence(table: Table, index: int) -> str:
    """One column of a table against the setting: ours with two standard errors, published figures dashed.

    A value of the setting that is a word has a level line.
    """
    column = table.columns[index]
    at = {row: number for row in table.rows if (number := facts.as_number(row)) is not None}
    whole = {row: table.entries[row, index] for row in table.rows if _whole(table.entries.get((row, index)))}
    ours, words = ({row: e for row, e in whole.items() if (row in at) is kind} for kind in (True, False))
    theirs = {
        row: entry.published
        for row in at
        if (entry := table.entries.get((row, index))) is not None and entry.published is not None
    }
    right, top, bottom = 232, 26, 132
    spans = [(entry.mean, 2 * _or_zero(entry.stderr)) for entry in whole.values()]
    spans += [(figure.mean, 2 * _or_zero(figure.stderr)) for figure in theirs.values()]
    y = svg.Scale(*svg.around(mean + sign * error for mean, error in spans for sign in (-1, 1)), bottom, top)
    left = max(48, svg.room(svg.ticks(y.low, y.high, svg.MOST_TICKS)))
    x = svg.Scale(*svg.around(at.values()), left, right)
    parts = svg.axes(column.title, x, y, {value: svg.short(value) for value in sorted(at.values())})
    published = [(x(at[row]), y(figure.mean)) for row, figure in theirs.items()]
    parts += [svg.curve(published, "published"), *(svg.circle(*point, 3.5, "hollow") for point in published)]
    for row, entry in words.items():
        parts += [svg.line(left, y(entry.mean), right, y(entry.mean), "level")]
        parts += [svg.text(right - 4, y(entry.mean) - 4, row, "small", "end")]
    for row, entry in ours.items():
        error = 2 * _or_zero(entry.stderr)
        parts += [svg.line(x(at[row]), y(entry.mean - error), x(at[row]), y(entry.mean + error), "error")]
    points = [(x(at[row]), y(entry.mean)) for row, entry in ours.items()]
    parts += [svg.curve(points, "ours"), *(svg.circle(*point, 3.5, "full") for point in points)]
    label = ", ".join(f"{row}: {entry.text(column.decimals)}" for row, entry in whole.items())
    return svg.drawing(240, 158, f"{column.title}, {column.metric.title}. {label}.", parts)


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
