"""What a fit of a classifier finds out about its classes, scores and probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.checks import Check, Verdict
from splitpoint.classification.support import AHEAD, Support
from splitpoint.consistency import entropy
from splitpoint.metrics import auroc
from splitpoint.selfcheck import some

POOR = 0.6
"""AUROC at made-up rows out of distribution below which a score tells nothing of them."""

ROWS_OF_CLASS = 4.0
"""Rows of a class on average below which centres say nothing about the spread around them."""

ERRORS, OFF = 3.0, 0.02
"""Confidence fails where it is this many standard errors and this much more away from the accuracy."""

NOISE, FLAT, FEWEST = 0.95, 0.55, 10
"""Log loss over that of the class shares, and AUROC of `total` for errors, where it says nothing; fewest errors."""


def classes(table: Table, count: int) -> Check:
    """How many rows a class has on average, and whether some have none."""
    rows = torch.bincount(table.column("label").flatten(), minlength=count)
    empty, mean, name = int((rows == 0).sum()), float(rows.double().mean()), "rows of a class"
    if mean < ROWS_OF_CLASS:
        advice = (
            f"{table.rows} rows are few for {count} classes, so that distances to their centres say little and support "
            "is hardly more than the energy of the logits; give more rows, calibration data among them."
        )
        return Check(name, mean, "warn", advice)
    missing = f", {empty} classes have none" if empty else ""
    return Check(name, mean, "ok", f"on average{missing}.")


def rivalry(support: Support) -> Check:
    """How far support is ahead of the better of energy and doubt at probes, and whether it gave way."""
    ours, *free = support.rivalry.tolist()
    name, lead = "support score", ours - max(free)
    if lead < -AHEAD and support.fused:
        better = "energy" if free[0] >= free[1] else "entropy"
        advice = (
            f"the {better} of the branches' joint answer finds made-up rows out of distribution better (AUROC "
            f"{max(free):.2f}) than with distances in full ({ours:.2f}); it is the score, with a tenth of the distance."
        )
        return Check(name, lead, "ok", advice)
    if lead < -AHEAD:
        better = "energy" if free[0] >= free[1] else "largest probability"
        advice = (
            f"distances in the features find made-up rows out of distribution less well (AUROC {ours:.2f}) than the "
            f"{better} alone ({max(free):.2f}), which is the score now; choose another layer, or give more rows."
        )
        return Check(name, lead, "warn", advice)
    if max(ours, *free) < POOR:
        advice = (
            f"neither support (AUROC {ours:.2f}) nor a free score ({max(free):.2f}) tells made-up rows out of "
            "distribution from real ones; rely on no flag, give more rows, or choose another layer."
        )
        return Check(name, lead, "warn", advice)
    verdict: Verdict = "unknown" if math.isnan(lead) else "ok"
    return Check(name, lead, verdict, "AUROC at made-up rows out of distribution, less that of the better free score.")


def uncalibrated(table: Table) -> Check:
    """What can be said of probabilities without calibration rows: nothing about new rows."""
    rows = some(table)
    probs = rows["logits"].double().softmax(1)
    right = float((probs.argmax(1) == rows["label"][:, 0]).double().mean())
    advice = (
        f"probabilities are the network's own, right on {right:.0%} of its training rows; how far to believe them on "
        "new rows only calibration data can tell."
    )
    return Check("calibration", float(probs.amax(1).mean()), "unknown", advice)


def calibrated(probs: Tensor, label: Tensor) -> Check:
    """Mean confidence less accuracy on calibration rows.

    Args:
        probs: (n, K) calibrated probabilities.
        label: (n,).
    """
    confidence, right = probs.double().amax(1), (probs.argmax(1) == label).double()
    gap, error = float((confidence - right).mean()), float((confidence - right).std(correction=0)) / len(label) ** 0.5
    if abs(gap) > ERRORS * error + OFF:
        advice = (
            f"the network is right on {right.mean():.0%} of the calibration rows, but {confidence.mean():.0%} sure on "
            "average even after calibration; give more calibration rows."
        )
        return Check("calibration", gap, "warn", advice)
    return Check("calibration", gap, "ok", "mean confidence less accuracy on calibration rows.")


def ranking(probs: Tensor, label: Tensor, total: Tensor) -> Check:
    """AUROC with which `total` finds wrong answers among calibration rows.

    Args:
        probs: (n, K) calibrated probabilities.
        label: (n,).
        total: (n,) scores.
    """
    name, wrong = "ranking of errors", probs.argmax(1) != label
    if min(int(wrong.sum()), int((~wrong).sum())) < FEWEST:
        return Check(name, math.nan, "unknown", f"it takes {FEWEST} right and {FEWEST} wrong answers.")
    found = auroc(total[~wrong], total[wrong])
    shares = torch.bincount(label, minlength=probs.shape[1]).double() / len(label)
    loss = float(-probs.double().gather(1, label[:, None]).clamp(min=1e-300).log().mean())
    error = math.sqrt(1 / (12 * int(wrong.sum())) + 1 / (12 * int((~wrong).sum())))
    if loss > NOISE * float(entropy(shares[None], 1)) and found + 2 * error < FLAT:
        advice = (
            "the network tells classes hardly better than their shares do, and no score tells its errors; check the "
            "labels, and use `total` for nothing."
        )
        return Check(name, found, "warn", advice)
    return Check(name, found, "ok", "AUROC of `total` for wrong answers among calibration rows.")
