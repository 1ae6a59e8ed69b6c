"""The figures of the image experiments, one panel for each data set and network."""

from __future__ import annotations

import html
from collections.abc import Sequence

from splitpoint.report import attack, histogram, names, reliability, thumbnails
from splitpoint.report.markup import figure, panel, tabs
from splitpoint.report.sheets import Sheet

ATTACK = (
    "One step of the fast gradient sign method, in units of the normalised input. Full, left axis: accuracy. Hollow "
    "and dashed, right axis: mean epistemic score, each method on its own scale. Doubt should rise as accuracy falls."
)
RELIABILITY = (
    "Accuracy against confidence in 15 bins, larger marks for more pictures; on the diagonal, confidence is what it "
    "says. Hollow and dashed: before calibration. Full: after it, or both at once where it left the probabilities "
    "unchanged. Methods that neither calibrate nor change the probabilities are left out."
)
HISTOGRAM = (
    "Epistemic score of test pictures (full outline) and of pictures out of distribution (dashed), as shares of each; "
    "logarithmic where no score is negative. The axis ends near the 0.1% and 99.9% quantiles of both groups together, "
    "and the outermost bins also count what lies beyond. Pictures right of the upright line are flagged, as are 5% of "
    "the calibration pictures."
)
NO_PICTURES = (
    f"None are stored for these records. Runs store them for {names.title('splitpoint_default_calibrated')}, first "
    "trial, only."
)


def gallery(name: str, sheets: Sequence[Sheet]) -> str:
    """All figures of the sheets; `name` tells their panels from others on the page."""
    datasets = list(dict.fromkeys(sheet.dataset for sheet in sheets))
    titles = [names.dataset_title(dataset) for dataset in datasets]
    name = f"{name}-figures"
    panels = "".join(
        panel(name, index, len(datasets), f"Figures, {title}", _figures([s for s in sheets if s.dataset == dataset]))
        for index, (dataset, title) in enumerate(zip(datasets, titles, strict=True))
    )
    return tabs(name, "Figures of a data set", [f"Figures, {title}" for title in titles]) + panels


def _figures(sheets: Sequence[Sheet]) -> str:
    """Of one data set."""
    calibrating = [sheet for sheet in sheets if sheet.calibrates]
    parts = ["<h4>Under attack</h4>", figure("".join(map(attack.draw, sheets)), ATTACK, tiled=True)]
    if calibrating:
        parts += ["<h4>Reliability</h4>", figure("".join(map(reliability.draw, calibrating)), RELIABILITY, tiled=True)]
    parts += ["<h4>Scores inside and outside</h4>"]
    parts += [figure("".join(map(histogram.draw, sheets)), HISTOGRAM, tiled=True)]
    pictures = "".join(map(thumbnails.draw, sheets)) or f'<p class="prose">{html.escape(NO_PICTURES)}</p>'
    return "".join([*parts, "<h4>Most and least doubted pictures</h4>", pictures])
