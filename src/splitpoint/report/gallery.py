"""What is drawn of the artefacts beside the records: curves of predictions, and figures of image experiments.

A further kind of artefact is one more function that draws all of a section, and a line in `ABOVE` or `BELOW`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from splitpoint.bench.artefacts import (
    Artefact,
    Attack,
    Curve,
    Drawing,
    Histogram,
    Reliability,
    Thumbnail,
    Thumbnails,
)
from splitpoint.bench.map_artefacts import MapDrawing
from splitpoint.report import facts, svg
from splitpoint.report.facts import Problem
from splitpoint.report.map_gallery import map_drawings
from splitpoint.report.markup import figure, panels, prose

# Curves

SUPPORT = 4.0
"""Training inputs of curves lie in [-4, 4]."""

MOST_DOTS = 250
CURVE_WIDTH, PREDICTION_HEIGHT, GAP, SCORE_HEIGHT = 250, 150, 12, 74
CURVE_LEFT, CURVE_RIGHT, HEAD = 38, 6, 22
CURVES = (
    "Above: prediction and 95% interval, truth dashed, training rows dotted. Below: epistemic score, each on its own "
    "scale. Shaded: the range of the training inputs."
)


def curves(name: str, shown: Sequence[Curve]) -> str:  # noqa: ARG001
    """A figure for each method: predictions above, epistemic score below, equal axes in all."""
    extent = svg.around((value for curve in shown for value in curve.x), 0)
    values = [
        value for curve in shown for part in (curve.true_lower, curve.true_upper, curve.train_y) for value in part
    ]
    reach = svg.around(values, 0.08)
    return figure("".join(_curve(curve, extent, reach) for curve in shown), CURVES, tiled=True)


def _curve(curve: Curve, extent: tuple[float, float], reach: tuple[float, float]) -> str:
    width, title = CURVE_WIDTH - CURVE_LEFT - CURVE_RIGHT, facts.title(curve.cell.method)
    x = svg.Scale(*extent, 0, width)
    shade = x(max(-SUPPORT, x.low)), x(min(SUPPORT, x.high))
    below = HEAD + PREDICTION_HEIGHT + GAP
    highest = max((value for value in curve.epistemic if math.isfinite(value)), default=0.0)
    upper_y = svg.Scale(*reach, PREDICTION_HEIGHT, 0)
    lower_y = svg.Scale(0, highest * 1.08 or 1.0, SCORE_HEIGHT, 0)
    parts = [svg.text(6, 14, title, "strong")]
    for y, height, scale, most in ((HEAD, PREDICTION_HEIGHT, upper_y, 5), (below, SCORE_HEIGHT, lower_y, 2)):
        parts += [svg.rectangle(CURVE_LEFT + shade[0], y, shade[1] - shade[0], height, "support")]
        parts += [svg.rectangle(CURVE_LEFT, y, width, height, "frame")]
        for tick in svg.ticks(scale.low, scale.high, most):
            parts += [svg.text(CURVE_LEFT - 5, y + scale(tick) + 4, svg.short(tick), "small", "end")]
    parts += [svg.window(CURVE_LEFT, HEAD, width, PREDICTION_HEIGHT, _predictions(curve, x, upper_y))]
    parts += [svg.window(CURVE_LEFT, below, width, SCORE_HEIGHT, _score(curve, x, lower_y))]
    for tick in svg.ticks(x.low, x.high, 6):
        parts += [svg.text(CURVE_LEFT + x(tick), below + SCORE_HEIGHT + 15, svg.short(tick), "small", "middle")]
    label = f"{title}: interval and truth above, epistemic score below, over x."
    return svg.drawing(CURVE_WIDTH, below + SCORE_HEIGHT + 20, label, parts)


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


# Accuracy and doubt under attack

ATTACK_FRAME = svg.Frame(width=264, height=168, left=34, right=210, top=26, bottom=132)
ATTACK = (
    "One step of the fast gradient sign method, in units of the normalised input. Full, left axis: accuracy. Hollow "
    "and dashed, right axis: mean epistemic score, each method on its own scale. Doubt should rise as accuracy falls."
)


def attack(title: str, shown: Attack) -> str:
    """Accuracy (full, left axis) and mean epistemic score (hollow and dashed, right axis) against the strength."""
    frame = ATTACK_FRAME
    x = frame.across(*svg.around(shown.strength, 0.04))
    accuracy, score = frame.upwards(-0.04, 1.04), frame.upwards(*svg.around(shown.epistemic))
    parts = svg.axes(title, x, accuracy, {tick: svg.short(tick) for tick in svg.ticks(x.low, x.high, 4)}, most=3)
    for tick in svg.ticks(score.low, score.high, 4):
        parts += [svg.line(frame.right, score(tick), frame.right + 4, score(tick), "axis")]
        parts += [svg.text(frame.right + 7, score(tick) + 4, svg.short(tick), "small")]
    parts += [svg.text((frame.left + frame.right) / 2, frame.height - 6, "strength of the attack", "small", "middle")]
    for values, scale, line, mark in (
        (shown.epistemic, score, "published", "hollow"),
        (shown.accuracy, accuracy, "ours", "full"),
    ):
        points = [(x(a), scale(b)) for a, b in zip(shown.strength, values, strict=True) if math.isfinite(a + b)]
        parts += [svg.curve(points, line), *(svg.circle(*point, 3, mark) for point in points)]
    steps = "; ".join(
        f"strength {svg.short(a)}: accuracy {b:.3f}, mean epistemic score {c:.3g}"
        for a, b, c in zip(shown.strength, shown.accuracy, shown.epistemic, strict=True)
        if math.isfinite(b + c)
    )
    return svg.drawing(frame.width, frame.height, f"{title} under attack. {steps}", parts)


# How often a method is right when it is that sure

RELIABILITY_FRAME = svg.Frame(width=240, height=262, left=36, right=226, top=38, bottom=218)
LEAST_RADIUS, GROWTH = 2.0, 4.5
RELIABILITY = (
    "Accuracy against confidence in 15 bins, larger marks for more images; on the diagonal, confidence is what it "
    "says. Hollow and dashed: before calibration. Full: after it, or both at once where it left the probabilities "
    "unchanged. Methods that neither calibrate nor change the probabilities are left out."
)


def reliability(title: str, before: Reliability, after: Reliability) -> str:
    """Accuracy against confidence: the base network hollow and dashed, the method full; areas follow the shares."""
    frame = RELIABILITY_FRAME
    x, y = frame.across(0, 1), frame.upwards(0, 1)
    ticks = {tick: svg.short(tick) for tick in svg.ticks(0, 1, 5)}
    same = before.bins == after.bins
    changed = f"unchanged, ECE {after.ece:.4f}" if same else f"ECE {before.ece:.4f} → {after.ece:.4f}"
    parts = [*svg.axes(title, x, y, ticks, most=5), svg.line(x(0), y(0), x(1), y(1), "axis")]
    parts += [svg.text(4, 29, changed, "small")]
    parts += [svg.text((frame.left + frame.right) / 2, frame.height - 10, "confidence", "small", "middle")]
    parts += _bins(before, x, y, "published", "hollow") + _bins(after, x, y, "ours", "full")
    return svg.drawing(frame.width, frame.height, f"{title}: accuracy against confidence, {changed}.", parts)


def _bins(shown: Reliability, x: svg.Scale, y: svg.Scale, line: str, mark: str) -> list[str]:
    points = [(x(confidence), y(accuracy), share) for confidence, accuracy, share in shown.bins]
    return [
        svg.curve([(a, b) for a, b, _ in points], line),
        *(svg.circle(a, b, LEAST_RADIUS + GROWTH * math.sqrt(share), mark) for a, b, share in points),
    ]


# Scores in and out of distribution

HISTOGRAM_FRAME = svg.Frame(width=240, height=152, left=36, right=230, top=26, bottom=132)
MOST_LABELS = 5
BEYOND = 0.001
WITHIN_POWER = (1, 2, 5)
HISTOGRAM = (
    "Epistemic score of test images (full outline) and of images out of distribution (dashed), as shares of each; "
    "logarithmic where no score is negative. The axis ends near the 0.1% and 99.9% quantiles of both groups together, "
    "and the outermost bins also count what lies beyond. Images right of the upright line are flagged, as are 5% of "
    "the calibration images."
)


def histogram(title: str, whole: Histogram) -> str:
    """Shares of test images (filled) and of others (dashed outline) over the score; the line is the threshold."""
    frame, shown = HISTOGRAM_FRAME, folded(whole)
    x = frame.across(shown.edges[0], shown.edges[-1])
    highest = max((share for share in (*shown.test, *shown.ood) if math.isfinite(share)), default=0.0)
    y = frame.upwards(0, highest * 1.08 or 1.0)
    parts = svg.axes(title, x, y, labels(shown), most=3)
    parts += [svg.curve(_steps(shown.edges, shown.test, x, y), "test", closed=True)]
    parts += [svg.curve(_steps(shown.edges, shown.ood, x, y), "ood", closed=True)]
    if x.low <= shown.threshold <= x.high:
        parts += [svg.line(x(shown.threshold), frame.top, x(shown.threshold), frame.bottom, "threshold")]
    return svg.drawing(frame.width, frame.height, f"{title}: {_in_words(shown)}", parts)


def folded(shown: Histogram) -> Histogram:
    """The same without bins at its ends that hold at most 0.1% of both sets together; the next ones count these too.

    >>> folded(Histogram(False, (0.0, 1.0, 2.0, 3.0), (0.5, 0.5, 0.0), (0.25, 0.749, 0.001), 1.0))
    Histogram(logarithm=False, edges=(0.0, 1.0, 2.0), test=(0.5, 0.5), ood=(0.25, 0.75), threshold=1.0)
    """
    both = [(a + b) / 2 for a, b in zip(shown.test, shown.ood, strict=True)]
    total = math.fsum(both)
    if not total > 0:
        return shown
    first = next(index for index in range(len(both)) if math.fsum(both[: index + 1]) > BEYOND * total)
    last = next(index for index in reversed(range(len(both))) if math.fsum(both[index:]) > BEYOND * total)
    test, ood = (
        (math.fsum(shares[: first + 1]), *shares[first + 1 : last], math.fsum(shares[last:]))
        if first < last
        else (math.fsum(shares),)
        for shares in (shown.test, shown.ood)
    )
    return replace(shown, edges=shown.edges[first : last + 2], test=test, ood=ood)


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


def _in_words(shown: Histogram) -> str:
    """Medians of both sets and the threshold, as far as the bins tell them."""

    def score(place: float) -> str:
        return f"{10**place if shown.logarithm else place:.2g}"

    threshold = f"; threshold {score(shown.threshold)}" if math.isfinite(shown.threshold) else ""
    return (
        f"epistemic score of test images (about {score(_median(shown.edges, shown.test))} in the middle) and of "
        f"images out of distribution (about {score(_median(shown.edges, shown.ood))}){threshold}."
    )


def _median(edges: Sequence[float], shares: Sequence[float]) -> float:
    below = 0.0
    for left, right, share in zip(edges[:-1], edges[1:], shares, strict=True):
        below += share
        if below >= 0.5 * math.fsum(shares):
            return (left + right) / 2
    return edges[-1]


# Images that a method doubts most and least

SIDE = 56
NO_IMAGES = "None are stored for these records. Runs store them for one method only, in its first trial."


def thumbnails(title: str, groups: Sequence[Thumbnails]) -> str:
    """A row of images for each group, the predicted class below each, marked where it is wrong; empty without any."""
    rows = "".join(
        f"<h5>{html.escape(group.title.capitalize())}</h5><ul>"
        + "".join(_thumbnail(one, ood=group.ood) for one in group.images)
        + "</ul>"
        for group in groups
        if group.images
    )
    if not rows:
        return ""
    caption = (
        f"By the epistemic score of {title}, the extreme ones first. Below each image the class that is predicted; ✕ "
        "where it is wrong, with the right one."
    )
    return f'<figure class="thumbnails">{rows}<figcaption>{html.escape(caption)}</figcaption></figure>'


def _thumbnail(one: Thumbnail, *, ood: bool) -> str:
    wrong = not ood and one.predicted != one.label
    alt = f"predicted {one.predicted}, {'out of distribution' if ood else f'label {one.label}'}"
    answer = f"✕ {one.predicted}, is {one.label}" if wrong else str(one.predicted)
    mark = ' class="wrong"' if wrong else ""
    style = ' class="pixels"' if one.width <= SIDE else ""
    return (
        f'<li{mark}><img src="data:image/png;base64,{html.escape(one.image)}" width="{SIDE}" height="{SIDE}" '
        f'alt="{alt}{", wrong" if wrong else ""}"{style}><small>{answer}</small></li>'
    )


# All of a section


def drawings(name: str, shown: Sequence[Drawing]) -> str:
    """All figures of image experiments, one panel for each problem; `name` tells them from others on the page."""
    problems = dict.fromkeys(Problem.of(drawing.cell) for drawing in shown)
    contents = [
        (f"Figures, {problem.title}", _figures([one for one in shown if Problem.of(one.cell) == problem]))
        for problem in problems
    ]
    return panels(f"{name}-figures", "Figures of a data set", contents)


def _figures(shown: Sequence[Drawing]) -> str:
    """All figures of one problem."""
    titled = [(facts.title(one.cell.method), one) for one in shown]
    attacks = [attack(title, one.attack) for title, one in titled]
    diagrams = [
        reliability(title, one.reliability_before, one.reliability)
        for title, one in titled
        if one.calibrated or one.recalibrated
    ]
    histograms = [histogram(title, one.histogram) for title, one in titled]
    images = [thumbnails(title, one.thumbnails) for title, one in titled]
    parts = ["<h4>Under attack</h4>", figure("".join(attacks), ATTACK, tiled=True)]
    if diagrams:
        parts += ["<h4>Reliability</h4>", figure("".join(diagrams), RELIABILITY, tiled=True)]
    parts += ["<h4>Scores in and out of distribution</h4>", figure("".join(histograms), HISTOGRAM, tiled=True)]
    parts += ["<h4>Most and least doubted images</h4>", "".join(images) or prose(NO_IMAGES)]
    return "".join(parts)


Draw = Callable[[str, Sequence[Any]], str]
"""From a name that tells panels apart and all artefacts of a section, in the order of the page, to their figures."""

ABOVE: Mapping[type[Artefact], Draw] = {Curve: curves}
BELOW: Mapping[type[Artefact], Draw] = {Drawing: drawings, MapDrawing: map_drawings}
"""How kinds of artefacts are drawn above and below the tables of a section."""


def read(folder: Path) -> list[Artefact]:
    """All artefacts of a folder in the order of the page."""
    found: list[Artefact] = [artefact for kind in (*ABOVE, *BELOW) for artefact in kind.read(folder)]
    problems = facts.ordered_problems(Problem.of(artefact.cell) for artefact in found)
    methods = facts.ordered(artefact.cell.method for artefact in found)
    return sorted(found, key=lambda one: (problems.index(Problem.of(one.cell)), methods.index(one.cell.method)))


def drawn(kinds: Mapping[type[Artefact], Draw], name: str, artefacts: Sequence[Artefact]) -> str:
    """The figures of those artefacts that are of one of the kinds."""
    groups = {kind: [one for one in artefacts if isinstance(one, kind)] for kind in kinds}
    return "".join(kinds[kind](name, group) for kind, group in groups.items() if group)
