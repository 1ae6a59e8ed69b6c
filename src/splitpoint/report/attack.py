"""Accuracy and doubt under attack: what a method thinks of pictures that its network gets wrong more and more."""

from __future__ import annotations

import math

from splitpoint.report import names, svg
from splitpoint.report.sheets import Sheet

WIDTH, HEIGHT = 264, 168
LEFT, RIGHT, TOP, BOTTOM = 34, 210, 26, 132


def draw(sheet: Sheet) -> str:
    """Accuracy (full, left axis) and mean epistemic score (hollow and dashed, right axis) against the strength."""
    attack, title = sheet.attack, names.title(sheet.method)
    x = svg.Scale(*svg.around(attack.strength, 0.04), LEFT, RIGHT)
    accuracy = svg.Scale(-0.04, 1.04, BOTTOM, TOP)
    score = svg.Scale(*svg.around(attack.epistemic), BOTTOM, TOP)
    parts = svg.axes(title, x, accuracy, {tick: svg.short(tick) for tick in svg.ticks(x.low, x.high, 4)}, most=3)
    for tick in svg.ticks(score.low, score.high, 4):
        parts += [svg.line(RIGHT, score(tick), RIGHT + 4, score(tick), "axis")]
        parts += [svg.text(RIGHT + 7, score(tick) + 4, svg.short(tick), "small")]
    parts += [svg.text((LEFT + RIGHT) / 2, HEIGHT - 6, "strength of the attack", "small", "middle")]
    for values, scale, line, mark in (
        (attack.epistemic, score, "published", "hollow"),
        (attack.accuracy, accuracy, "ours", "full"),
    ):
        points = [(x(a), scale(b)) for a, b in zip(attack.strength, values, strict=True) if math.isfinite(a + b)]
        parts += [svg.curve(points, line), *(svg.circle(*point, 3, mark) for point in points)]
    return svg.drawing(WIDTH, HEIGHT, f"{title} under attack. {_said(sheet)}", parts)


def _said(sheet: Sheet) -> str:
    rows = zip(sheet.attack.strength, sheet.attack.accuracy, sheet.attack.epistemic, strict=True)
    return "; ".join(
        f"strength {svg.short(strength)}: accuracy {accuracy:.3f}, mean epistemic score {score:.3g}"
        for strength, accuracy, score in rows
        if math.isfinite(accuracy + score)
    )
