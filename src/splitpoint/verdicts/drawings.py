"""Charts of numbers with error bars, and curves, in the manner of reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

from splitpoint.report import svg
from splitpoint.verdicts.judging import short
from splitpoint.verdicts.parts import Bar, Chart, Plot

WIDTH, TOP, HEIGHT = 264, 26, 106
"""Size of the drawing across, where its axes begin, and how high they are."""

LINE = 22
"""Height of a number with a word beside it."""

LETTER = 6.0
"""Width of a letter of the small type."""

STYLES = ("ours", "published", "truth", "level")
"""Of curves, in order."""


def chart(shown: Chart) -> str:
    """Numbers with error bars: over a numbered axis, or line by line where they have names."""
    drawn = _over_numbers if all(_is_number(bar.label) for bar in shown.bars) else _by_name
    return drawn(shown)


def _is_number(label: str) -> bool:
    return label.replace(".", "", 1).isdigit()


def _extent(bars: Sequence[Bar]) -> tuple[float, float]:
    return svg.around(value for bar in bars for value in (bar.value, bar.low, bar.high, bar.promise))


def _over_numbers(shown: Chart) -> str:
    y = svg.Scale(*_extent(shown.bars), TOP + HEIGHT, TOP)
    x = svg.Scale(-0.6, len(shown.bars) - 0.4, max(38, svg.room(svg.ticks(y.low, y.high, svg.MOST_TICKS))), WIDTH - 8)
    parts = svg.axes(shown.title, x, y, {float(place): bar.label for place, bar in enumerate(shown.bars)})
    for place, bar in enumerate(shown.bars):
        half = 0.32 * (x(1) - x(0))
        if math.isfinite(bar.promise):
            parts += [svg.line(x(place) - half, y(bar.promise), x(place) + half, y(bar.promise), "truth")]
        if math.isfinite(bar.value):
            parts += [svg.line(x(place), y(bar.low), x(place), y(bar.high), "error")]
            parts += [svg.circle(x(place), y(bar.value), 3.5, "full")]
    parts += [svg.text((x.start + x.stop) / 2, TOP + HEIGHT + 32, shown.axis, "small", "middle")]
    return svg.drawing(WIDTH, TOP + HEIGHT + 40, _in_words(shown), parts)


def _by_name(shown: Chart) -> str:
    height = LINE * len(shown.bars) + 8
    left = 14 + LETTER * max(len(bar.label) for bar in shown.bars)
    x = svg.Scale(*_extent(shown.bars), left, WIDTH - 14)
    parts = [svg.text(4, 14, shown.title, "strong"), svg.rectangle(left, TOP, x.stop - left, height, "frame")]
    for tick in svg.ticks(x.low, x.high, 4):
        parts += [svg.line(x(tick), TOP, x(tick), TOP + height, "grid")]
        parts += [svg.text(x(tick), TOP + height + 15, svg.short(tick), "small", "middle")]
    for place, bar in enumerate(shown.bars):
        y = TOP + 4 + LINE * (place + 0.5)
        parts += [svg.text(left - 7, y + 4, bar.label, "small", "end")]
        if math.isfinite(bar.promise):
            parts += [svg.line(x(bar.promise), y - 9, x(bar.promise), y + 9, "truth")]
        if math.isfinite(bar.value):
            parts += [svg.line(x(bar.low), y, x(bar.high), y, "error"), svg.circle(x(bar.value), y, 3.5, "full")]
    parts += [svg.text((left + x.stop) / 2, TOP + height + 32, shown.axis, "small", "middle")]
    return svg.drawing(WIDTH, TOP + height + 40, _in_words(shown), parts)


def _in_words(shown: Chart) -> str:
    said = "; ".join(f"{bar.label}: {short(bar.value)} ({short(bar.low)} to {short(bar.high)})" for bar in shown.bars)
    return f"{shown.title}, by {shown.axis}. {said}."


def plot(shown: Plot) -> str:
    """Curves over the same axes, the first one full; names below."""
    y = svg.Scale(*svg.around([0.0, *(value for curve in shown.curves for value in curve.y)], 0.04), TOP + HEIGHT, TOP)
    x = svg.Scale(0, 1.02, max(38, svg.room(svg.ticks(y.low, y.high, svg.MOST_TICKS))), WIDTH - 8)
    ticks = {tick: svg.short(tick) for tick in svg.ticks(0, 1, 5)}
    parts = svg.axes(shown.title, x, y, ticks)
    styles = dict(zip((curve.title for curve in shown.curves), STYLES, strict=False))
    for curve in reversed(shown.curves):
        parts += [svg.curve([(x(a), y(b)) for a, b in zip(curve.x, curve.y, strict=True)], styles[curve.title])]
    parts += [svg.text((x.start + x.stop) / 2, TOP + HEIGHT + 32, shown.axis, "small", "middle")]
    below = TOP + HEIGHT + 50
    for place, (title, style) in enumerate(styles.items()):
        line = below + 16 * place
        parts += [
            svg.line(x.start, line - 4, x.start + 24, line - 4, style),
            svg.text(x.start + 30, line, title, "small"),
        ]
    ends = "; ".join(f"{curve.title}: {short(curve.y[0])} to {short(curve.y[-1])}" for curve in shown.curves)
    height = below + 16 * len(styles) - 8
    return svg.drawing(WIDTH, height, f"{shown.title} over the {shown.axis}. {ends}.", parts)
