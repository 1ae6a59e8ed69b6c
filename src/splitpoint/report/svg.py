"""Drawing by hand: scales, ticks and the few SVG elements that the figures need, coloured by the page's style sheet."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float]]

MOST_TICKS = 4
"""Steps between the numbers of a small plot, unless it says otherwise."""


@dataclass(frozen=True)
class Scale:
    """A linear map of the values [low, high] to the places [start, stop]."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Place of a value; all of an empty range are in the middle."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.stop - self.start)


@dataclass(frozen=True)
class Frame:
    """The size of a small plot, and where its axes are inside."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    def across(self, low: float, high: float) -> Scale:
        """A scale from left to right."""
        return Scale(low, high, self.left, self.right)

    def upwards(self, low: float, high: float) -> Scale:
        """A scale from the bottom to the top."""
        return Scale(low, high, self.bottom, self.top)


def around(values: Iterable[float], margin: float = 0.06) -> tuple[float, float]:
    """Smallest and largest finite value with some room on both sides; (0, 1) without any."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = margin * (high - low) if high > low else abs(high) / 10 or 1.0
    return low - room, high + room


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within the range: multiples of 1, 2 or 5 times a power of ten.

    >>> ticks(0, 1), ticks(-6, 6, 5)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-5.0, 0.0, 5.0])
    """
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def short(value: float) -> str:
    """A number for an axis.

    >>> short(0.05), short(12000.0), short(-0.0), short(2e7)
    ('0.05', '12000', '0', '2e7')
    """
    return f"{value + 0.0:.5g}".replace("e+0", "e").replace("e-0", "e-")


def room(values: Iterable[float]) -> float:
    """How wide a column of numbers on an axis is, with a gap beside it; digits of the page's small type are 6.6 wide.

    >>> room([0.0228, 0.02285]), room([0.5])
    (54.2, 27.8)
    """
    return round(8 + 6.6 * max((len(short(value)) for value in values), default=0), 1)


def text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    """Words with their base line at (x, y)."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{_class(style)}>{html.escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{_class(style)}/>'


def rectangle(x: float, y: float, width: float, height: float, style: str = "") -> str:
    """A rectangle from its upper left corner."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"{_class(style)}/>'


def circle(x: float, y: float, radius: float, style: str = "") -> str:
    """A circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"{_class(style)}/>'


def curve(points: Points, style: str = "", *, closed: bool = False) -> str:
    """A line through points, broken where one is not finite; closed ones are areas."""
    steps, pen = [], "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = pen if closed else "M"
            continue
        steps.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return f'<path d="{"".join(steps)}{"Z" if closed and steps else ""}"{_class(style)}/>'


def dots(points: Points, style: str = "dots") -> str:
    """Small dots as one path of round ends, which is much shorter than circles."""
    steps = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points if math.isfinite(x) and math.isfinite(y))
    return f'<path d="{steps}"{_class(style)}/>'


def window(x: float, y: float, width: float, height: float, parts: Iterable[str]) -> str:
    """Parts in coordinates of their own, cut off at the edge."""
    inside = "".join(parts)
    return f'<svg x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" overflow="hidden">{inside}</svg>'


def drawing(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A whole figure; `label` says what it shows to those who cannot see it."""
    inside = "".join(parts)
    return (
        f'<svg class="plot" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-label="{html.escape(label)}">{inside}</svg>'
    )


def axes(title: str, x: Scale, y: Scale, labels: Mapping[float, str], most: int = MOST_TICKS) -> list[str]:
    """Title, frame, grid and numbers of a small plot: up to `most` values of y, and the labels of x by value."""
    parts = [text(4, 14, title, "strong")]
    parts += [rectangle(x.start, y.stop, x.stop - x.start, y.start - y.stop, "frame")]
    for tick in ticks(y.low, y.high, most):
        parts += [line(x.start, y(tick), x.stop, y(tick), "grid")]
        parts += [text(x.start - 5, y(tick) + 4, short(tick), "small", "end")]
    return parts + [text(x(value), y.start + 15, label, "small", "middle") for value, label in labels.items()]


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
