"""Whether the total score finds errors, beside scores that cost nothing: entropy, largest probability, width."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from splitpoint import metrics
from splitpoint.verdicts.coverage import Channels, rank_in_channel
from splitpoint.verdicts.entries import Classes, Numbers
from splitpoint.verdicts.estimates import Estimate, Mean, aurc_influence, auroc_influence, row_error, spearman_influence
from splitpoint.verdicts.judging import Finding, Question
from splitpoint.verdicts.parts import Bar, Chart, Curve, Part, Plot

FEWEST = 10
"""Wrong answers, and right ones, below which nothing is said of finding them."""

BEHIND, FAR_BEHIND = 0.03, 0.10
"""AUROC by which a free score may be ahead of ours."""

LESS, FAR_LESS = 0.05, 0.15
"""Rank correlation with the size of the error by which a free score may be ahead of ours."""

HARMFUL, VERY_HARMFUL = 0.02, 0.10
"""How much worse than refusing at random a score may be."""

POINTS = 60
"""Points of a curve."""

LEAST_KEPT = 0.05
"""Share of the rows from which on a curve is drawn; of fewer, the mean error is that of a handful."""


def number_part(entries: Numbers, levels: tuple[float, ...]) -> Part:
    """How much of the mean error refusing rows by their score saves."""
    unit = Channels.of(entries, levels).unit[entries.channel]
    loss = (entries.error / unit).abs()
    scores = {"total": entries.total, "width": entries.width, "aleatoric": entries.aleatoric}
    ranks = {name: rank_in_channel(score, entries.channel) for name, score in scores.items()}
    found = {name: _correlation(rank, loss, entries.row) for name, rank in ranks.items()}
    saved = {name: _saved(rank, loss, entries.row) for name, rank in ranks.items()}
    questions = [_useful(found["total"][0], "Rank correlation of `total` with the size of the error")]
    for name, title in (("width", "the width of the interval"), ("aleatoric", "`aleatoric`")):
        behind = _difference(found[name], found["total"], entries.row)
        questions.append(_rival(name, title, behind, "Rank correlation", LESS, FAR_LESS))
    figures = {f"spearman_{name}": one.value for name, (one, _) in found.items()}
    figures |= {f"saved_{name}": one.value for name, one in saved.items()}
    correlations = {name: one for name, (one, _) in found.items()}
    return Part(
        "ranking",
        "Finding errors",
        "Rows with the highest total score are refused first. A score is worth something if it is high where errors "
        "are large; the width of the interval does that for free.",
        questions,
        figures=figures | {"aurc": metrics.aurc(ranks["total"], loss)},
        charts=(
            _chart("spearman", "Rank correlation with errors", correlations, 0.0),
            _chart("saved", "Share of the error saved", saved, 0.0),
        ),
        plots=(_curves({name: (rank, loss) for name, rank in ranks.items()}, "Mean error of what is kept"),),
        note="Saved: what refusing rows by a score saves of the mean error, averaged over all shares of refused rows. "
        "Bars: 95%. Curves: mean error of the rows that are kept, in units of the median one.",
    )


def class_part(entries: Classes) -> Part:
    """AUROC of the total score for wrong answers, and risk-coverage curves."""
    wrong = entries.wrong
    scores = {"total": entries.total, "entropy": entries.base_entropy, "max_probability": 1 - entries.base_confidence}
    about = (
        "Whether wrong answers have higher scores than right ones (AUROC), beside the entropy and the largest "
        "probability of the base model, which are free."
    )
    curves = _curves({name: (score, wrong.double()) for name, score in scores.items()}, "Wrong among what is kept")
    errors = int(wrong.sum())
    figures = {"errors": float(errors)}
    if min(errors, len(wrong) - errors) < FEWEST:
        says = f"{errors} of {len(wrong)} answers are wrong: it takes {FEWEST} of each kind to judge a score by."
        finding = Finding("auroc_error", "unknown", f"Finding wrong answers: {says}")
        return Part("ranking", "Finding errors", about, findings=(finding,), figures=figures)
    found = {name: aurocs(score, wrong, entries.row) for name, score in scores.items()}
    questions = [_useful(found["total"][0], "AUROC of `total` for wrong answers", 0.5)]
    for name, title in (("entropy", "the entropy"), ("max_probability", "the largest probability")):
        behind = _difference(found[name], found["total"], entries.row)
        questions.append(_rival(name, f"{title} of the base model", behind, "AUROC", BEHIND, FAR_BEHIND))
    figures |= {"auroc_error": found["total"][0].value}
    figures |= {f"auroc_error_{name}": found[name][0].value for name in ("entropy", "max_probability")}
    figures |= {"aurc": metrics.aurc(entries.total, wrong.double())}
    return Part(
        "ranking",
        "Finding errors",
        about,
        questions,
        figures=figures,
        charts=(
            _chart("auroc_error", "AUROC for wrong answers", {name: one for name, (one, _) in found.items()}, 0.5),
        ),
        plots=(curves,),
        note="AUROC with 95% bars (DeLong), and the share of wrong answers among those that are kept.",
    )


def aurocs(score: Tensor, positive: Tensor, row: Tensor) -> tuple[Mean, Tensor]:
    """AUROC with its error, and the influence of every entry on it.

    Degrees of freedom are those of the smaller group. Where the score is right throughout, it is half a row of it.
    """
    influence = auroc_influence(score, positive)
    value, found = metrics.auroc(score[~positive], score[positive]), row_error(influence, row)
    fewer = min(int(torch.unique(row[own]).numel()) for own in (positive, ~positive))
    error = found.error if 0 < value < 1 else 0.5 / max(fewer, 1)
    return Mean(value, error, min(found.freedom, max(fewer - 1, 1)), (0.0, 1.0)), influence


def _correlation(rank: Tensor, loss: Tensor, row: Tensor) -> tuple[Mean, Tensor]:
    """Spearman's rank correlation with its error, and the influence of every entry on it."""
    influence = spearman_influence(rank, loss)
    found = row_error(influence, row)
    return Mean(metrics.spearman(rank, loss), found.error, found.freedom, (-1.0, 1.0)), influence


def _saved(rank: Tensor, loss: Tensor, row: Tensor) -> Mean:
    """``1 - aurc / mean loss``."""
    mean, area = float(loss.mean()), metrics.aurc(rank, loss)
    influence = area / mean**2 * (loss - mean) - aurc_influence(rank, loss) / mean
    found = row_error(influence, row)
    return Mean(1 - area / mean, found.error, found.freedom)


def _difference(first: tuple[Mean, Tensor], second: tuple[Mean, Tensor], row: Tensor) -> Mean:
    error = row_error(first[1] - second[1], row)
    return Mean(first[0].value - second[0].value, error.error, first[0].freedom)


def _useful(estimate: Estimate, says: str, nothing: float = 0.0) -> Question:
    trouble = "The score ranks errors the wrong way round: refuse no row by `total`."
    return Question("total", estimate, nothing, "low", HARMFUL, VERY_HARMFUL, says, trouble, proof=nothing)


def _rival(name: str, title: str, behind: Mean, unit: str, yellow: float, red: float) -> Question:
    trouble = f"Rank errors by {title} instead of `total`, which is worth less here."
    says = f"{unit} by which {title} is ahead of `total`"
    return Question(f"total_against_{name}", behind, 0.0, "high", yellow, red, says, trouble)


def _chart(name: str, title: str, found: Mapping[str, Estimate], promise: float) -> Chart:
    bars = (Bar(key.replace("_", " "), one.value, *one.shown, promise, 0) for key, one in found.items())
    return Chart(name, title, "score", tuple(bars))


def _curves(scores: Mapping[str, tuple[Tensor, Tensor]], title: str) -> Plot:
    curves = []
    for name, (score, loss) in scores.items():
        found = metrics.risk_coverage(score, loss)
        rows = len(found.risk)
        first = min(max(math.ceil(LEAST_KEPT * rows) - 1, 0), rows - 1)
        places = torch.linspace(first, rows - 1, min(POINTS, rows - first)).round().long()
        curves.append(
            Curve(name.replace("_", " "), tuple(found.coverage[places].tolist()), tuple(found.risk[places].tolist()))
        )
    return Plot("risk_coverage", title, "share of the rows kept", tuple(curves))
