"""Whether support tells strange inputs from ordinary ones, and whether the test rows are ordinary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from splitpoint.prediction import Reference
from splitpoint.verdicts.entries import Rows
from splitpoint.verdicts.estimates import Estimate, Mean, mean_of, row_error, share_of
from splitpoint.verdicts.judging import Finding, Question
from splitpoint.verdicts.parts import Bar, Chart, Part
from splitpoint.verdicts.ranking import FEWEST, aurocs

BLIND, REVERSED = 0.65, 0.15
"""AUROC below which support says little of the strange inputs, and how far below it is worse than nothing."""

BEHIND, FAR_BEHIND = 0.03, 0.10
"""AUROC by which a free score may be ahead of support."""

FLAGS, MOST_FLAGS = 1.5, 4.0
"""Flags above the nominal share, in units of it, that matter, and that matter a lot.

The threshold is that of a sample: of one of 100 rows the true share is .09 now and then where .05 is nominal.
"""

SHIFT, LARGE_SHIFT = 0.08, 0.2
"""How far the AUROC that tells test from calibration rows may be from one half."""

FREE = {
    "width": "the width of the interval",
    "entropy": "the entropy of the base model",
    "doubt": "the largest probability of the base model",
    "energy": "the energy of the logits",
}
"""Scores that cost nothing, by their names in `Rows`."""

SHORT_NAMES = {"doubt": "max_probability"}


def known_scores(rows: Rows) -> dict[str, Tensor]:
    """Support and the free scores that exist for these rows."""
    found = {"support": rows.support}
    found |= {name: getattr(rows, name) for name in FREE if not getattr(rows, name).isnan().all()}
    return found


def ood_part(test: Rows, ood: Rows, reference: Reference | None) -> Part:
    """AUROC of support for rows out of distribution, beside the free scores."""
    about = (
        f"{len(ood.support)} rows that you say are out of distribution, against {len(test.support)} test rows: how "
        "often one of the former scores above one of the latter (AUROC), beside scores that are free."
    )
    title, fewest = "Out of distribution", min(len(test.support), len(ood.support))
    if fewest < FEWEST:
        says = f"Finding strange inputs: {fewest} rows of a kind; it takes {FEWEST} to judge a score by."
        return Part("ood", title, about, findings=(Finding("auroc_ood", "unknown", says),))
    score = {name: torch.cat([known, known_scores(ood)[name]]) for name, known in known_scores(test).items()}
    strange = torch.arange(len(score["support"])) >= len(test.support)
    row = torch.arange(len(strange))
    found = {name: aurocs(values, strange, row) for name, values in score.items()}
    questions = [
        Question(
            "auroc_ood", found["support"][0], BLIND, "low", 0.0, REVERSED, "AUROC of `support` for these inputs",
            "Support hardly sees them: choose another layer (`sp.layers` lists them), or rely on no flag.",
        )
    ]  # fmt: skip
    figures = {"auroc_ood": found["support"][0].value}
    for name in list(found)[1:]:
        ahead = found[name][0].value - found["support"][0].value
        error = row_error(found[name][1] - found["support"][1], row)
        behind = Mean(ahead, error.error, found[name][0].freedom)
        trouble = f"Use {FREE[name]} to find such inputs: it is free, and better here."
        says = f"AUROC by which {FREE[name]} is ahead of `support`"
        questions.append(
            Question(f"support_against_{_name(name)}", behind, 0.0, "high", BEHIND, FAR_BEHIND, says, trouble)
        )
        figures[f"auroc_ood_{_name(name)}"] = found[name][0].value
    if not ood.flags.isnan().any():
        figures["flag_rate_ood"] = float(ood.flags.mean())
    threshold = math.nan if reference is None or reference.threshold.numel() != 1 else float(reference.threshold)
    return Part(
        "ood",
        title,
        about,
        questions,
        figures=figures,
        charts=(_chart({name: one for name, (one, _) in found.items()}),),
        histogram=_histogram(test.support, ood.support, threshold),
        note="AUROC with 95% bars (DeLong). Support of test rows (full outline) and of those out of distribution "
        "(dashed), as shares of each; rows right of the upright line are flagged.",
    )


def _name(score: str) -> str:
    return SHORT_NAMES.get(score, score)


def _chart(found: Mapping[str, Estimate]) -> Chart:
    bars = (Bar(_name(name).replace("_", " "), one.value, *one.shown, 0.5, 0) for name, one in found.items())
    return Chart("auroc_ood", "AUROC, out of distribution", "score", tuple(bars))


def _histogram(test: Tensor, ood: Tensor, threshold: float) -> dict[str, object] | None:
    from splitpoint.bench.drawings import histogram  # drags in the data sets, which a verdict without ood= is spared

    if not test.isfinite().any() or not ood.isfinite().any():
        return None
    return asdict(histogram(test, ood, threshold))


def nominal(reference: Reference) -> float:
    """The share of in-distribution rows that a threshold flags by design, from the quantiles that are kept with it."""
    above = (reference.quantiles > reference.threshold.unsqueeze(-1)).double().sum(-1) + 1
    return float((above / (reference.quantiles.shape[-1] + 1)).mean())


def flag_part(test: Rows, reference: Reference | None, calibration: Rows | None) -> Part | None:
    """Flags among test rows, and whether support tells them from calibration rows; None where neither can be known."""
    questions: list[Question] = []
    figures: dict[str, float] = {}
    bars: list[Bar] = []
    if reference is not None and not test.flags.isnan().any():
        share, aim = mean_of(test.flags, torch.arange(len(test.flags))), nominal(reference)
        found: Estimate = share_of(test.flags > 0, torch.arange(len(test.flags))) if _single(test.flags) else share
        trouble = (
            "Far more test rows are flagged than the threshold was set for: these rows differ from those of "
            "`set_threshold` (shifted data, or a threshold learned on training rows)."
        )
        says = f"Share of test rows that are flagged, {aim:.3g} by design"
        questions.append(Question("flag_rate", found, aim, "high", FLAGS * aim, MOST_FLAGS * aim, says, trouble))
        figures |= {"flag_rate": found.value, "flag_rate_nominal": aim}
        bars.append(Bar("test", found.value, *found.shown, aim, len(test.flags)))
    if calibration is not None and min(len(test.support), len(calibration.support)) >= FEWEST:
        score = torch.cat([calibration.support, test.support])
        own = torch.arange(len(score)) >= len(calibration.support)
        shift, _ = aurocs(score, own, torch.arange(len(score)))
        trouble = (
            "The training data say less about the test rows than about the calibration rows: the data have shifted, or "
            "the calibration rows are not fresh. No promise of a calibration holds then."
        )
        says = "AUROC with which support tells test rows from calibration rows (0.5: not at all)"
        questions.append(Question("shift", shift, 0.5, "high", SHIFT, LARGE_SHIFT, says, trouble))
        figures["auroc_shift"] = shift.value
    if not questions:
        return None
    return Part(
        "flags",
        "Are the test rows ordinary?",
        "Flags among rows that should be in distribution, and their support beside that of calibration rows.",
        questions,
        figures=figures,
        charts=(Chart("flag_rate", "Flagged", "rows", tuple(bars)),) if bars else (),
    )


def _single(flags: Tensor) -> bool:
    """Whether rows are flagged as a whole."""
    return bool(((flags == 0) | (flags == 1)).all())
