"""Probabilities: whether they are what they say, in all, by bin and by score; and sets of classes.

Even perfect probabilities have a calibration error on few rows. What it would be is found by drawing labels from the
probabilities themselves; only what is above that counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from splitpoint.metrics.classification import binned, top_gap
from splitpoint.verdicts.coverage import DECILE_BAD, DECILE_SHORT, parts_of, promised
from splitpoint.verdicts.entries import Classes
from splitpoint.verdicts.estimates import Excess, mean_of, row_error, share_of
from splitpoint.verdicts.judging import Question, short
from splitpoint.verdicts.parts import Bar, Chart, Part

BINS, FINE = 15, 20
"""Bins of the calibration error, and parts of a bin in which labels are drawn with one probability."""

DRAWS = 2_000
"""Sets of labels that are drawn."""

OFF, BADLY_OFF = 0.04, 0.08
"""Calibration error above its floor, or confidence above accuracy, that matters, and that matters a lot."""

SHY = 0.06
"""How far accuracy may be above confidence."""


def probability_part(entries: Classes) -> Part:
    """Calibration error, confidence against accuracy, and both by part of the score."""
    right = ~entries.wrong
    clumped = clumping(entries.confidence, right, entries.row)
    excess = Excess(top_gap(entries.confidence, right, BINS), drawn_gaps(entries.confidence) * math.sqrt(clumped))
    confidence, accuracy = float(entries.confidence.mean()), share_of(right, entries.row)
    advice = (
        "Fit with `calibration=` rows that the model has not seen; if it was calibrated, these rows differ from the "
        "calibration rows."
    )
    questions = [
        Question(
            "ece", excess, 0.0, "high", OFF, BADLY_OFF,
            f"Calibration error (ECE) {short(excess.found)}, {short(excess.floor)} of which is chance; the rest",
            f"Probabilities are off by that much on average. {advice}", key=True,
        ),
        Question(
            "accuracy", accuracy, confidence, "low", OFF, BADLY_OFF,
            f"Share of right answers, where mean confidence is {short(confidence)}",
            f"The model is surer than it is right. {advice}", SHY,
            f"The model is right more often than it is sure. {advice}", key=True,
        ),
    ]  # fmt: skip
    deciles = list(_deciles(entries, right))
    questions += [question for question, _ in deciles]
    figures = {
        "accuracy": accuracy.value,
        "confidence": confidence,
        "overconfidence": confidence - accuracy.value,
        "ece": excess.found,
        "ece_floor": excess.floor,
        "ece_base": top_gap(entries.base_confidence, entries.base_choice == entries.label, BINS),
        "nll": float(-entries.likelihood.clamp(min=torch.finfo(torch.float64).tiny).log().mean()),
        "brier": float(entries.brier.mean()),
    }
    title, label = "Right answers, by part", "total score, lowest to highest"
    return Part(
        "probabilities",
        "Probabilities",
        "Probabilities are what they say if, of all answers with a confidence of .9, nine of ten are right.",
        questions,
        figures=figures,
        charts=(Chart("deciles", title, label, tuple(bar for _, bar in deciles)),) if len(deciles) > 1 else (),
        reliability={
            "base": _bins(entries.base_confidence, entries.base_choice == entries.label),
            "calibrated": _bins(entries.confidence, right),
        },
        note="Reliability: accuracy against confidence in 15 bins, larger marks for more rows; hollow and dashed the "
        "base model, full this predictor. By part: share of right answers where the score is low and high, "
        "with 95% bars; dashed, mean confidence.",
    )


def _bins(confidence: Tensor, right: Tensor) -> dict[str, list[float]]:
    found = binned(confidence, right, BINS)
    return {name: getattr(found, name).double().tolist() for name in ("confidence", "accuracy", "count")}


def clumping(confidence: Tensor, right: Tensor, row: Tensor) -> float:
    """How many times as much the mean of ``right - confidence`` varies as over independent entries; at least 1.

    Where every row is one entry it is 1.
    """
    rows = int(torch.unique(row).numel())
    alone = float((confidence * (1 - confidence)).sum()) / len(confidence) ** 2
    if rows == len(row) or rows < 2 or not alone > 0:
        return 1.0
    gap = right.double() - confidence
    return min(max(row_error(gap - gap.mean(), row).error ** 2 / alone, 1.0), len(row) / rows)


def drawn_gaps(confidence: Tensor, draws: int = DRAWS) -> Tensor:
    """Calibration errors (draws,) of these confidences if they are right: labels are drawn from them.

    Answers of nearly one confidence (a twentieth of a bin) are drawn together, from a binomial distribution.
    """
    generator = torch.Generator().manual_seed(0)
    index = (confidence * BINS * FINE).ceil().long().sub(1).clamp(0, BINS * FINE - 1)
    count = torch.bincount(index, minlength=BINS * FINE).double()
    sums = count.new_zeros(BINS * FINE).index_add_(0, index, confidence)
    share = (sums / count.clamp(min=1)).clamp(0, 1)
    hits = torch.binomial(count.expand(draws, -1), share.expand(draws, -1), generator=generator)
    return (hits - sums).reshape(draws, BINS, FINE).sum(2).abs().sum(1) / max(len(confidence), 1)


def _deciles(entries: Classes, right: Tensor) -> Iterator[tuple[Question, Bar]]:
    """Accuracy beside mean confidence where the total score is lowest, ..., highest."""
    groups = parts_of(entries.total, int(torch.unique(entries.row).numel()))
    for number, own in enumerate(groups, 1):
        confidence, share = float(entries.confidence[own].mean()), share_of(right[own], entries.row[own])
        says = (
            f"Share of right answers in part {number} of {len(groups)} by total score, confidence {short(confidence)}"
        )
        trouble = "Probabilities of rows with such scores are off, whatever they are on average: treat these with care."
        question = Question(
            f"accuracy_decile_{number}", share, confidence, "low", DECILE_SHORT, DECILE_BAD, says, trouble, minor=True
        )
        yield question, Bar(str(number), share.value, *share.shown, confidence, len(own))


def set_part(entries: Classes, level: float) -> Part:
    """How often prediction sets hold the label, in all and by part of the score, and how large they are."""
    share, size = share_of(entries.held > 0, entries.row), mean_of(entries.size, entries.row)
    question = promised(f"set_coverage_{level:g}", f"Coverage of prediction sets at level {level:g}", share, level)
    bars = []
    for number, own in enumerate(parts_of(entries.total, int(torch.unique(entries.row).numel())), 1):
        part = share_of(entries.held[own] > 0, entries.row[own])
        bars.append(Bar(str(number), part.value, *part.shown, level, len(own)))
    return Part(
        "sets",
        "Prediction sets",
        f"Sets at level {level:g} hold {short(size.value)} classes on average ({short(size.shown[0])} to "
        f"{short(size.shown[1])}).",
        (question,),
        figures={"set_coverage": share.value, "set_size": size.value, "set_level": level},
        charts=(
            Chart(
                "set_deciles", f"By part of the score, level {level:g}", "total score, lowest to highest", tuple(bars)
            ),
        ),
        note="Dashed: what is promised on average over all parts. Bars: 95%, exact binomial.",
    )
