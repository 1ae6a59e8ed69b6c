"""What is drawn of methods on maps: the attack, sparsification, coverages of images, and the maps themselves."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from splitpoint.bench.map_artefacts import COLOURS, Coverages, MapDrawing, MapRow, Sparsified, Sweep
from splitpoint.report import facts, svg
from splitpoint.report.facts import Problem
from splitpoint.report.markup import figure, panels, prose

SWEEP_FRAME = svg.Frame(width=264, height=168, left=44, right=226, top=26, bottom=132)
SWEEP = (
    "One step of the fast gradient sign method on the squared error, through each method's own prediction. Full, left "
    "axis: RMSE. Hollow and dashed, right axis: mean score of the images, 0 at its lowest and 1 at its highest along "
    "the sweep. Both should rise together."
)
SPARSIFICATION_FRAME = svg.Frame(width=240, height=190, left=36, right=228, top=26, bottom=150)
SPARSIFICATION = (
    "Mean absolute error of the pixels that are left, relative to that of all, when those with the highest total score "
    "are removed (full), and when those with the largest error are (dashed), which no score can beat."
)
COVERAGE_FRAME = svg.Frame(width=240, height=190, left=36, right=228, top=26, bottom=150)
COVERAGE = (
    "Share of the test images by the share of their pixels inside the interval; the dashed line is the level. A method "
    "that covers nine tenths of all pixels may cover all of one image and half of another."
)
MAPS = (
    "One test image, clean and under growing attacks, and the first image of each set out of distribution. Grey has no "
    "number. Click a map, or reach it with the tab key, to enlarge it."
)
SIDE = 120
"""Height of a map on the page."""


def map_drawings(name: str, drawn: Sequence[MapDrawing]) -> str:
    """All figures of methods on maps, one panel for each problem; `name` tells them from others on the page."""
    problems = dict.fromkeys(Problem.of(one.cell) for one in drawn)
    contents = [
        (f"Figures, {problem.title}", _figures(f"{name}-{place}", [o for o in drawn if Problem.of(o.cell) == problem]))
        for place, problem in enumerate(problems)
    ]
    return panels(f"{name}-maps", "Figures of a data set", contents)


def _figures(name: str, drawn: Sequence[MapDrawing]) -> str:
    titled = [(facts.title(one.cell.method), one) for one in drawn]
    return "".join(
        (
            "<h4>Under attack</h4>",
            figure("".join(sweep(title, one.sweep) for title, one in titled), SWEEP, tiled=True),
            "<h4>Sparsification</h4>",
            figure("".join(sparsified(title, one.sparsified) for title, one in titled), SPARSIFICATION, tiled=True),
            "<h4>Coverage of single images</h4>",
            figure("".join(coverages(title, one.coverages, one.level) for title, one in titled), COVERAGE, tiled=True),
            "<h4>Maps</h4>",
            prose(MAPS),
            panels(f"{name}-methods", "Maps of a method", [(who, maps(who, one)) for who, one in titled if one.rows]),
        )
    )


def sweep(title: str, shown: Sweep) -> str:
    """RMSE (full, left axis) and normalised score (hollow and dashed, right axis) against the strength."""
    frame = SWEEP_FRAME
    x = frame.across(*svg.around(shown.strength, 0.04))
    error, score = frame.upwards(*svg.around(shown.rmse)), frame.upwards(-0.06, 1.06)
    parts = svg.axes(title, x, error, {tick: svg.short(tick) for tick in svg.ticks(x.low, x.high, 4)}, most=3)
    for tick in (0.0, 0.5, 1.0):
        parts += [svg.line(frame.right, score(tick), frame.right + 4, score(tick), "axis")]
        parts += [svg.text(frame.right + 7, score(tick) + 4, svg.short(tick), "small")]
    parts += [svg.text((frame.left + frame.right) / 2, frame.height - 6, "strength of the attack", "small", "middle")]
    for values, scale, line, mark in (
        (normalised(shown.epistemic), score, "published", "hollow"),
        (shown.rmse, error, "ours", "full"),
    ):
        points = [(x(a), scale(b)) for a, b in zip(shown.strength, values, strict=True) if math.isfinite(a + b)]
        parts += [svg.curve(points, line), *(svg.circle(*point, 3, mark) for point in points)]
    steps = "; ".join(
        f"strength {svg.short(a)}: RMSE {b:.3g}, mean score {c:.3g}"
        for a, b, c in zip(shown.strength, shown.rmse, shown.epistemic, strict=True)
        if math.isfinite(b + c)
    )
    return svg.drawing(frame.width, frame.height, f"{title} under attack. {steps}", parts)


def normalised(values: Sequence[float]) -> tuple[float, ...]:
    """From 0 at the lowest to 1 at the highest; all 0 where they are equal.

    >>> normalised([2.0, 4.0, 3.0])
    (0.0, 1.0, 0.5)
    """
    finite = [value for value in values if math.isfinite(value)]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    return tuple((value - low) / span if span else value - low for value in values)


def sparsified(title: str, shown: Sparsified) -> str:
    """Error left against the share removed, and the oracle's."""
    frame = SPARSIFICATION_FRAME
    x, y = frame.across(0, 1), frame.upwards(0, max(1.05, *(v for v in shown.error if math.isfinite(v)), 0.0))
    parts = svg.axes(title, x, y, {tick: svg.short(tick) for tick in svg.ticks(0, 1, 4)}, most=4)
    parts += [svg.text((frame.left + frame.right) / 2, frame.height - 10, "share removed", "small", "middle")]
    for values, line in ((shown.oracle, "published"), (shown.error, "ours")):
        parts += [svg.curve([(x(a), y(b)) for a, b in zip(shown.removed, values, strict=True)], line)]
    label = f"{title}: error of the pixels that are left, relative to all, by total score and by the error itself."
    return svg.drawing(frame.width, frame.height, label, parts)


def coverages(title: str, shown: Coverages, level: float) -> str:
    """A histogram of the coverages of images."""
    frame = COVERAGE_FRAME
    x, y = frame.across(0, 1), frame.upwards(0, 1.08 * max((*shown.share, 0.0)) or 1.0)
    parts = svg.axes(title, x, y, {tick: svg.short(tick) for tick in svg.ticks(0, 1, 4)}, most=3)
    for left, right, share in zip(shown.edges[:-1], shown.edges[1:], shown.share, strict=True):
        if share > 0:
            parts += [svg.rectangle(x(left), y(share), x(right) - x(left), y(0) - y(share), "test")]
    parts += [svg.line(x(level), frame.top, x(level), frame.bottom, "truth")]
    parts += [svg.text((frame.left + frame.right) / 2, frame.height - 10, "pixels inside", "small", "middle")]
    below = math.fsum(s for right, s in zip(shown.edges[1:], shown.share, strict=True) if right <= 0.8 + 1e-9)
    label = f"{title}: share of images by coverage; {below:.0%} of them have at most 80% of their pixels inside."
    return svg.drawing(frame.width, frame.height, label, parts)


# Maps


def maps(title: str, shown: MapDrawing) -> str:
    """A table of maps: a row for each quantity with the bar of its colours, a column for each image."""
    heads = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in shown.columns)
    rows = "".join(_row(title, shown, row) for row in shown.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(f"Maps of {title}")}">'
        f'<table class="maps"><thead><tr><th scope="col"></th>{heads}<th scope="col">scale</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(title: str, shown: MapDrawing, row: MapRow) -> str:
    cells = "".join(
        f'<td><img tabindex="0" height="{SIDE}" src="data:image/png;base64,{html.escape(one)}" '
        f'alt="{html.escape(f"{row.title}, {column}, {title}")}"></td>'
        for one, column in zip(row.maps, shown.columns, strict=True)
    )
    return f'<tr><th scope="row">{html.escape(row.title)}</th>{cells}<td>{_bar(row)}</td></tr>'


def _bar(row: MapRow) -> str:
    """The bar of colours of a row with its numbers; empty where colours stand for none."""
    if not math.isfinite(row.low + row.high):
        return ""
    y, count = svg.Scale(row.low, row.high, SIDE - 12, 10), len(COLOURS)
    height = (SIDE - 22) / (16 * (count - 1))
    parts = []
    for step in range(16 * (count - 1)):
        place, between = divmod(step, 16)
        red, green, blue = (
            round(a + (b - a) * between / 16) for a, b in zip(COLOURS[place], COLOURS[place + 1], strict=True)
        )
        top = SIDE - 12 - (step + 1) * height
        parts += [
            f'<rect x="2" y="{top:.2f}" width="12" height="{height + 0.3:.2f}" fill="rgb({red} {green} {blue})"/>'
        ]
    unit = f" {row.unit}" if row.unit else ""
    for tick in svg.ticks(row.low, row.high, 5):
        parts += [
            svg.line(14, y(tick), 18, y(tick), "axis"),
            svg.text(21, y(tick) + 4, svg.short(tick) + unit, "small"),
        ]
    label = f"{row.title}: from {svg.short(row.low)} (dark) to {svg.short(row.high)}{unit} (light)"
    return svg.drawing(86, SIDE, label, parts)
