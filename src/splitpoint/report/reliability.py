"""Reliability diagrams: how often a method is right when it is that sure, before and after it changed probabilities."""

from __future__ import annotations

import math

from splitpoint.report import names, svg
from splitpoint.report.sheets import Reliability, Sheet

WIDTH, HEIGHT = 240, 262
LEFT, RIGHT, TOP, BOTTOM = 36, 226, 38, 218
LEAST_RADIUS, GROWTH = 2.0, 4.5


def draw(sheet: Sheet) -> str:
    """Accuracy against confidence: the base network hollow and dashed, the method full; areas follow the shares."""
    x, y = svg.Scale(0, 1, LEFT, RIGHT), svg.Scale(0, 1, BOTTOM, TOP)
    title = names.title(sheet.method)
    ticks = {tick: svg.short(tick) for tick in svg.ticks(0, 1, 5)}
    parts = [*svg.axes(title, x, y, ticks, most=5), svg.line(x(0), y(0), x(1), y(1), "axis")]
    said = f"ECE {sheet.before.ece:.4f} → {sheet.after.ece:.4f}" if sheet.recalibrated else _kept(sheet)
    parts += [svg.text(4, 29, said, "small")]
    parts += [svg.text((LEFT + RIGHT) / 2, HEIGHT - 10, "confidence", "small", "middle")]
    parts += _marks(sheet.before, x, y, "published", "hollow") + _marks(sheet.after, x, y, "ours", "full")
    return svg.drawing(WIDTH, HEIGHT, f"{title}: accuracy against confidence, {said}.", parts)


def _kept(sheet: Sheet) -> str:
    return f"unchanged, ECE {sheet.after.ece:.4f}"


def _marks(shown: Reliability, x: svg.Scale, y: svg.Scale, line: str, mark: str) -> list[str]:
    points = [(x(confidence), y(accuracy), share) for confidence, accuracy, share in shown.bins]
    return [
        svg.curve([(a, b) for a, b, _ in points], line),
        *(svg.circle(a, b, LEAST_RADIUS + GROWTH * math.sqrt(share), mark) for a, b, share in points),
    ]
