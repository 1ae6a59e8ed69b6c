"""Histograms of the epistemic score, inside and outside of the distribution, with the threshold between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from splitpoint.report import names, svg
from splitpoint.report.sheets import Histogram, Sheet

WIDTH, HEIGHT = 240, 152
LEFT, RIGHT, TOP, BOTTOM = 36, 230, 26, 132
MOST_LABELS = 5
BEYOND = 0.001
WITHIN_POWER = (1, 2, 5)


def draw(sheet: Sheet) -> str:
    """Shares of test pictures (filled) and of others (dashed outline) over the score; the line is the threshold."""
    shown, title = folded(sheet.histogram), names.title(sheet.method)
    x = svg.Scale(shown.edges[0], shown.edges[-1], LEFT, RIGHT)
    highest = max((share for share in (*shown.inside, *shown.outside) if math.isfinite(share)), default=0.0)
    y = svg.Scale(0, highest * 1.08 or 1.0, BOTTOM, TOP)
    parts = svg.axes(title, x, y, labels(shown), most=3)
    parts += [svg.curve(_steps(shown.edges, shown.inside, x, y), "inside", closed=True)]
    parts += [svg.curve(_steps(shown.edges, shown.outside, x, y), "outside", closed=True)]
    if x.low <= shown.threshold <= x.high:
        parts += [svg.line(x(shown.threshold), TOP, x(shown.threshold), BOTTOM, "threshold")]
    return svg.drawing(WIDTH, HEIGHT, f"{title}: {_said(shown)}", parts)


def folded(shown: Histogram) -> Histogram:
    """The same without bins at its ends that hold at most 0.1% of both sets together; the next ones count these too.

    >>> folded(Histogram(False, (0.0, 1.0, 2.0, 3.0), (0.5, 0.5, 0.0), (0.25, 0.749, 0.001), 1.0))
    Histogram(logarithm=False, edges=(0.0, 1.0, 2.0), inside=(0.5, 0.5), outside=(0.25, 0.75), threshold=1.0)
    """
    both = [(a + b) / 2 for a, b in zip(shown.inside, shown.outside, strict=True)]
    total = math.fsum(both)
    if not total > 0:
        return shown
    first = next(index for index in range(len(both)) if math.fsum(both[: index + 1]) > BEYOND * total)
    last = next(index for index in reversed(range(len(both))) if math.fsum(both[index:]) > BEYOND * total)
    inside, outside = (
        (math.fsum(shares[: first + 1]), *shares[first + 1 : last], math.fsum(shares[last:]))
        if first < last
        else (math.fsum(shares),)
        for shares in (shown.inside, shown.outside)
    )
    return replace(shown, edges=shown.edges[first : last + 2], inside=inside, outside=outside)


def labels(shown: Histogram) -> dict[float, str]:
    """Places on the axis and what is written there; the score itself also where places are logarithms.

    Powers of ten, every second, third, ... where there are many; 1, 2 and 5 times such where there are few.

    >>> labels(Histogram(True, (-4.0, 0.0), (1.0,), (1.0,), 0.0))
    {-4: '1e-4', -3: '1e-3', -2: '0.01', -1: '0.1', 0: '1'}
    """
    low, high = shown.edges[0], shown.edges[-1]
    if not shown.logarithm:
        return {tick: svg.short(tick) for tick in svg.ticks(low, high, MOST_LABELS - 1)}
    powers = range(math.ceil(low), math.floor(high) + 1)
    if len(powers) > 1:
        step = math.ceil(len(powers) / MOST_LABELS)
        return {power: _power(power) for power in powers if power % step == 0}
    values = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in WITHIN_POWER]
    return {math.log10(value): f"{value:.1g}" for value in values if low <= math.log10(value) <= high}


def _power(exponent: int) -> str:
    return f"{10.0**exponent:g}" if -2 <= exponent <= 3 else f"1e{exponent}"


def _steps(edges: Sequence[float], shares: Sequence[float], x: svg.Scale, y: svg.Scale) -> list[tuple[float, float]]:
    points = [(x(edges[0]), y(0))]
    for left, right, share in zip(edges[:-1], edges[1:], shares, strict=True):
        points += [(x(left), y(share)), (x(right), y(share))]
    return [*points, (x(edges[-1]), y(0))]


def _said(shown: Histogram) -> str:
    """Medians of both sets and the threshold, as far as the bins tell them."""

    def score(place: float) -> str:
        return f"{10**place if shown.logarithm else place:.2g}"

    threshold = f"; threshold {score(shown.threshold)}" if math.isfinite(shown.threshold) else ""
    return (
        f"epistemic score of test pictures (about {score(_median(shown.edges, shown.inside))} in the middle) and of "
        f"pictures out of distribution (about {score(_median(shown.edges, shown.outside))}){threshold}."
    )


def _median(edges: Sequence[float], shares: Sequence[float]) -> float:
    below = 0.0
    for left, right, share in zip(edges[:-1], edges[1:], shares, strict=True):
        below += share
        if below >= 0.5 * math.fsum(shares):
            return (left + right) / 2
    return edges[-1]
