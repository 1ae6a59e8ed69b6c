"""Predictions along the input of the cubic task: ``curves.jsonl`` beside the records, drawn for every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from splitpoint.errors import DataError
from splitpoint.report import names, svg
from splitpoint.report.lines import numbers, read_whole, word

CURVES = "curves.jsonl"
SUPPORT = 4.0
"""Training inputs lie in [-4, 4]."""

MOST_DOTS = 250
WIDTH, TOP, GAP, LOW = 250, 150, 12, 74
LEFT, RIGHT, HEAD = 38, 6, 22


@dataclass(frozen=True)
class Curve:
    """Predictions of one method on a grid, the truth there, and the training rows; one line of the file."""

    noise: str
    method: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    epistemic: tuple[float, ...]
    truth: tuple[float, ...]
    true_lower: tuple[float, ...]
    true_upper: tuple[float, ...]
    train_x: tuple[float, ...]
    train_y: tuple[float, ...]


def read(folder: Path) -> list[Curve]:
    """The curves of a folder, none without a file; torn lines do not count, as in the records."""
    found = {(curve.noise, curve.method): curve for curve in read_whole(folder / CURVES, _parsed)}
    return list(found.values())


def _parsed(values: Any) -> Curve:
    kept = {field.name: values[field.name] for field in fields(Curve)}
    parts = {key: numbers(part) for key, part in kept.items() if key not in ("noise", "method")}
    sizes = {len(part) for key, part in parts.items() if not key.startswith("train_")}
    if len(sizes) != 1 or len(parts["train_x"]) != len(parts["train_y"]):
        raise DataError("Expected equally many numbers in the parts of a curve.")
    return Curve(word(kept["noise"]), word(kept["method"]), **parts)


def draw(curves: Sequence[Curve]) -> list[str]:
    """A figure for each method of one noise: predictions above, epistemic score below, equal axes in all."""
    known = names.ordered(curve.method for curve in curves)
    curves = sorted(curves, key=lambda curve: known.index(curve.method))
    extent = svg.around((value for curve in curves for value in curve.x), 0)
    values = [
        value for curve in curves for part in (curve.true_lower, curve.true_upper, curve.train_y) for value in part
    ]
    reach = svg.around(values, 0.08)
    return [_figure(curve, extent, reach) for curve in curves]


def _figure(curve: Curve, extent: tuple[float, float], reach: tuple[float, float]) -> str:
    width = WIDTH - LEFT - RIGHT
    x = svg.Scale(*extent, 0, width)
    shade = x(max(-SUPPORT, x.low)), x(min(SUPPORT, x.high))
    below = HEAD + TOP + GAP
    highest = max((value for value in curve.epistemic if math.isfinite(value)), default=0.0)
    upper_y, lower_y = svg.Scale(*reach, TOP, 0), svg.Scale(0, highest * 1.08 or 1.0, LOW, 0)
    parts = [svg.text(6, 14, names.title(curve.method), "strong")]
    for y, height, scale in ((HEAD, TOP, upper_y), (below, LOW, lower_y)):
        parts += [svg.rectangle(LEFT + shade[0], y, shade[1] - shade[0], height, "support")]
        parts += [svg.rectangle(LEFT, y, width, height, "frame")]
        for tick in svg.ticks(scale.low, scale.high, 5 if scale is upper_y else 2):
            parts += [svg.text(LEFT - 5, y + scale(tick) + 4, svg.short(tick), "small", "end")]
    parts += [svg.window(LEFT, HEAD, width, TOP, _predictions(curve, x, upper_y))]
    parts += [svg.window(LEFT, below, width, LOW, _score(curve, x, lower_y))]
    for tick in svg.ticks(x.low, x.high, 6):
        parts += [svg.text(LEFT + x(tick), below + LOW + 15, svg.short(tick), "small", "middle")]
    label = f"{names.title(curve.method)}: interval and truth above, epistemic score below, over x."
    return svg.drawing(WIDTH, below + LOW + 20, label, parts)


def _predictions(curve: Curve, x: svg.Scale, y: svg.Scale) -> list[str]:
    def along(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(x(a), y(b)) for a, b in zip(curve.x, values, strict=True)]

    step = max(1, math.ceil(len(curve.train_x) / MOST_DOTS))
    rows = list(zip(curve.train_x, curve.train_y, strict=True))[::step]
    return [
        svg.curve([*along(curve.lower), *reversed(along(curve.upper))], "interval", closed=True),
        svg.dots([(x(a), y(b)) for a, b in rows]),
        *(svg.curve(along(part), "truth") for part in (curve.truth, curve.true_lower, curve.true_upper)),
        svg.curve(along(curve.mean), "ours"),
    ]


def _score(curve: Curve, x: svg.Scale, y: svg.Scale) -> list[str]:
    points = [(x(a), y(b)) for a, b in zip(curve.x, curve.epistemic, strict=True)]
    ends = [(points[-1][0], y(0)), (points[0][0], y(0))] if points else []
    return [svg.curve([*points, *ends], "score-area", closed=True), svg.curve(points, "score")]
