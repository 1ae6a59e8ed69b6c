"""Intervals: whether they hold what they promise, at every level, on each side and where the score is high or low.

Widths are told in units of the constant interval: as wide for every row as holds the share of the test residuals
that the level names. No constant width does better on these rows, so that it is the hardest such rival.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint import metrics
from splitpoint.metrics.ranking import average_ranks, equal_parts
from splitpoint.prediction import RegressionPrediction
from splitpoint.verdicts.entries import Numbers
from splitpoint.verdicts.estimates import Mean, Share, ratio_of, share_of
from splitpoint.verdicts.judging import Finding, Question, short
from splitpoint.verdicts.parts import Bar, Chart, Part

SHORT = 0.16
"""How far coverage may be below its level, in units of ``sqrt(level (1 - level))``: .035 at level .95, .08 at .5. Badly
short it is at twice that. Calibration on 350 rows alone leaves a third of it as one standard error."""

LOOSE = 0.8
"""Intervals are too wide where four of five of the promised misses do not happen."""

SIDE_SHORT = 2.0
"""A side, with half the rows, may be short by this many times as much."""

DECILES, ROWS_OF_DECILE = 10, 20
"""Most parts that rows are split into by their score, and fewest rows of one."""

DECILE_SHORT, DECILE_BAD = 0.15, 0.3
"""Coverage within a decile of the score, which no method promises, may be this much too low."""

MISSES = 5
"""Misses that are expected of as many rows as widths are compared on, at least: of fewer, the constant interval has
simply learned the answers."""

WIDER = 0.05
"""Share by which the Winkler score may be worse than that of the constant interval."""


@dataclass(frozen=True, eq=False)
class Channels:
    """Every output in units of its own: the median size of its errors, and what constant interval it would have."""

    unit: Tensor
    half: Tensor

    @staticmethod
    def of(entries: Numbers, levels: Sequence[float]) -> Channels:
        """Of the test rows themselves."""
        count = int(entries.channel.max()) + 1 if len(entries.channel) else 0
        unit, half = torch.ones(count, dtype=torch.float64), torch.zeros(count, len(levels), dtype=torch.float64)
        order = entries.channel.argsort(stable=True)
        sizes = torch.bincount(entries.channel, minlength=count).tolist()
        for channel, errors in enumerate(entries.error.abs()[order].split(sizes)):
            if len(errors):
                ordered = errors.sort().values
                unit[channel] = ordered[len(ordered) // 2].clamp(min=torch.finfo(torch.float64).tiny)
                places = [min(len(ordered), math.ceil(level * len(ordered) - 1e-9)) - 1 for level in levels]
                half[channel] = ordered[torch.tensor(places).clamp(min=0)]
        return Channels(unit, half)


def rank_in_channel(score: Tensor, channel: Tensor) -> Tensor:
    """Rank of every score among those of its output, from 0 to 1: outputs have units of their own."""
    found = torch.empty(len(score), dtype=torch.float64)
    for one in torch.unique(channel).tolist():
        own = channel == one
        ranks = average_ranks(score[own].nan_to_num(nan=torch.inf))
        found[own] = ranks / len(ranks)
    return found


def parts_of(score: Tensor, rows: int, most: int = DECILES) -> list[Tensor]:
    """Places of the entries in each of up to ten parts of equal size, by ascending score."""
    parts = max(1, min(most, rows // ROWS_OF_DECILE))
    order = score.argsort(stable=True)
    number = equal_parts(len(order), parts, order.device)
    return [order[number == part] for part in range(parts)]


def coverage_part(entries: Numbers, levels: Sequence[float]) -> Part:
    """Coverage at every level, on each side and by decile of the total score."""
    inside = (entries.lowers <= entries.target[:, None]) & (entries.target[:, None] <= entries.uppers)
    questions, figures, bars = [], {}, []
    for place, level in enumerate(levels):
        share = share_of(inside[:, place], entries.row)
        questions.append(promised(f"coverage_{level:g}", f"Coverage of intervals at level {level:g}", share, level))
        bars.append(Bar(f"{level:g}", share.value, *share.shown, level, len(entries.row)))
        figures[f"coverage_{level:g}"] = share.value
    figures["coverage"], figures["level"] = bars[-1].value, levels[-1]
    sides = list(_sides(entries, levels[-1]))
    for question, bar in sides:
        questions.append(question)
        figures[question.name] = bar.value
    deciles = list(_deciles(entries, inside[:, -1], levels[-1]))
    questions += [question for question, _ in deciles]
    if deciles:
        figures["coverage_worst_decile"] = min(bar.value for _, bar in deciles)
    charts = [
        Chart("levels", "By level", "level", tuple(bars)),
        Chart("sides", f"By side, level {levels[-1]:g}", "side of the prediction", tuple(bar for _, bar in sides)),
    ]
    if len(deciles) > 1:
        title = f"By part of the score, level {levels[-1]:g}"
        charts.append(Chart("deciles", title, "total score, lowest to highest", tuple(bar for _, bar in deciles)))
    return Part(
        "coverage",
        "Coverage",
        "How often the interval holds the target. A side counts the targets on that side of the prediction only; parts "
        "hold equally many rows, from the lowest total score to the highest.",
        questions,
        figures=figures,
        charts=charts,
        note="Dashed: what is promised. Bars: 95%, exact binomial (Clopper-Pearson), by rows where a row has several "
        "entries.",
    )


def promised(name: str, says: str, share: Share, level: float) -> Question:
    """Whether a share is short of its level, or far above."""
    gap = SHORT * math.sqrt(level * (1 - level))
    return Question(
        name, share, level, "low", gap, 2 * gap, says,
        "They miss more often than they promise on rows like these. Fit again with `calibration=` rows that neither "
        "the model nor the fit has seen; if it was calibrated, these rows differ from the calibration rows.",
        over=LOOSE * (1 - level),
        over_trouble="They are wider than they need to be; calibrate on rows like these.",
        key=True,
    )  # fmt: skip


def _sides(entries: Numbers, level: float) -> Iterator[tuple[Question, Bar]]:
    gap = SIDE_SHORT * SHORT * math.sqrt(level * (1 - level))
    for name, title, own, kept in (
        ("up", "above", entries.error > 0, entries.target <= entries.uppers[:, -1]),
        ("down", "below", entries.error < 0, entries.target >= entries.lowers[:, -1]),
    ):
        share, count = share_of(kept[own], entries.row[own]), int(own.sum())
        trouble = (
            f"The bound {title} the prediction fails more often than it should, whatever the other one does: do not "
            "use it on its own. Give more calibration rows."
        )
        says = f"Coverage of targets {title} the prediction, level {level:g}"
        question = Question(f"coverage_{name}", share, level, "low", gap, 2 * gap, says, trouble)
        yield question, Bar(title, share.value, *share.shown, level, count)


def _deciles(entries: Numbers, inside: Tensor, level: float) -> Iterator[tuple[Question, Bar]]:
    groups = parts_of(rank_in_channel(entries.total, entries.channel), int(torch.unique(entries.row).numel()))
    for number, own in enumerate(groups, 1):
        share = share_of(inside[own], entries.row[own])
        says = f"Coverage in part {number} of {len(groups)} by total score"
        trouble = (
            f"Among rows with such scores intervals hold only {short(share.value)}: coverage is right on average at "
            "best. Treat these rows with care."
        )
        question = Question(
            f"coverage_decile_{number}", share, level, "low", DECILE_SHORT, DECILE_BAD, says, trouble, minor=True
        )
        yield question, Bar(str(number), share.value, *share.shown, level, len(own))


def width_part(entries: Numbers, prediction: RegressionPrediction, levels: Sequence[float]) -> Part:
    """Widths and Winkler scores beside those of the constant interval, in units of every output."""
    level, miss = levels[-1], 2 / (1 - levels[-1])
    title, figures = "Width", {
        "width": metrics.mpiw(prediction, entries.target),
        "winkler": metrics.winkler(prediction, entries.target),
    }  # fmt: skip
    about = (
        f"Beside an interval of one width for all rows, which holds {level:g} of these very residuals: the best there "
        f"is, since it has seen the answers. The Winkler score is the width plus {miss:g} times every miss."
    )
    needed, rows = math.ceil(MISSES / (1 - level) - 1e-9), int(torch.unique(entries.row).numel())
    infinite = int((~entries.width.isfinite()).sum())
    if rows < needed or infinite:
        says = f"{infinite} intervals have no end" if infinite else f"{rows} rows, where it takes {needed}"
        finding = Finding(
            "winkler_ratio", "unknown", f"Widths beside the best constant width, level {level:g}: {says}."
        )
        return Part("width", title, about, findings=(finding,), figures=figures)
    width, winkler = _ratios(entries, Channels.of(entries, levels), miss)
    trouble = (
        "An interval of one width for all rows would serve better: use the method `conformal`, or give these intervals "
        "calibration rows."
    )
    says = f"Winkler score over that of the best constant width, level {level:g} (below 1 is better)"
    question = Question("winkler_ratio", winkler, 1.0, "high", WIDER, math.inf, says, trouble)
    bars = (
        Bar("width", width.value, *width.shown, 1.0, len(entries.row)),
        Bar("Winkler", winkler.value, *winkler.shown, 1.0, len(entries.row)),
    )
    figures |= {"width_ratio": width.value, "winkler_ratio": winkler.value}
    charts = (Chart("ratios", "Over the constant interval", "below 1 is better", bars),)
    return Part("width", title, about, (question,), figures=figures, charts=charts)


def _ratios(entries: Numbers, found: Channels, miss: float) -> tuple[Mean, Mean]:
    """Mean width and mean Winkler score over those of the constant interval."""
    unit, half = found.unit[entries.channel], found.half[entries.channel, -1]
    low, high = entries.lowers[:, -1], entries.uppers[:, -1]
    outside = torch.relu(low - entries.target) + torch.relu(entries.target - high)
    ours = (entries.width + miss * outside) / unit
    rival = (2 * half + miss * torch.relu(entries.error.abs() - half)) / unit
    return ratio_of(entries.width / unit, 2 * half / unit, entries.row), ratio_of(ours, rival, entries.row)


def flat(entries: Numbers, levels: Sequence[float]) -> RegressionPrediction:
    """The entries as a prediction, for functions of `metrics`."""
    return RegressionPrediction(
        mean=entries.mean,
        levels=tuple(levels),
        lowers=entries.lowers,
        uppers=entries.uppers,
        aleatoric=entries.aleatoric,
        epistemic=entries.epistemic,
        total=entries.total,
        reference=None,
        support=entries.support,
    )
