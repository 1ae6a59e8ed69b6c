"""Run both tasks, write figures and one self-contained page, and return what to tell the user."""

from __future__ import annotations

import html
import string
import time
from collections.abc import Sequence
from pathlib import Path

from splitpoint.demo.figures import cubic_figure, digits_figure
from splitpoint.demo.tasks import (
    CALIBRATION_HEADER,
    CUBIC_HEADER,
    DETECTION_HEADER,
    run_cubic,
    run_digits,
)
from splitpoint.errors import DataError
from splitpoint.files import write_text
from splitpoint.report.markup import prose
from splitpoint.report.page import asset

Rows = Sequence[tuple[str, ...]]

CUBIC_TEXT = (
    "Cubic regression, log-normal noise. Trained on 2,000 points in [-4, 4]; coverage, width and Winkler score on "
    "4,000 fresh points there (nominal coverage 0.95, in all and on each side); AUROC of the epistemic score for "
    "|x| > 4 on 4,000 points in [-6, 6]. One run."
)
DIGITS_TEXT = (
    "A small CNN on scikit-learn's digits: 900 images to train, 400 to calibrate, 497 to test. AUROC of a score for "
    "the base model's errors, for FGSM-attacked images and for images with shuffled pixels. One run."
)


def run(out: Path, seed: int = 0, progress: bool = True) -> str:
    """Run the demonstration into the folder `out` and return the report as text."""
    began = time.perf_counter()
    if out.exists() and not out.is_dir():
        raise DataError(f"Expected a folder to write to, but {out} is a file; give another one.")
    out.mkdir(parents=True, exist_ok=True)
    cubic, digits = run_cubic(seed, progress), run_digits(seed, progress)
    tables: list[tuple[str, Rows]] = [
        (CUBIC_TEXT, [CUBIC_HEADER, *cubic.table]),
        (DIGITS_TEXT, [CALIBRATION_HEADER, *digits.calibration_table]),
        ("", [DETECTION_HEADER, *digits.detection_table]),
    ]
    page = out / "index.html"
    write_text(page, _page(tables, cubic_figure(cubic), digits_figure(digits)))
    text = "\n\n".join(f"{caption}\n\n{as_text(rows)}".strip("\n") for caption, rows in tables)
    return f"{text}\n\nDone in {time.perf_counter() - began:.0f} s. Page with figures:\n  {page}"


def as_text(rows: Rows) -> str:
    """Rows as a plain table: first column left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _as_html(rows: Rows) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in rows[0])
    body = "".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows[1:]
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _page(tables: Sequence[tuple[str, Rows]], cubic_drawn: str, digits_drawn: str) -> str:
    cubic, calibration, detection = tables
    return string.Template(PAGE).substitute(
        style=asset("page.css"),
        cubic=prose(cubic[0]) + _as_html(cubic[1]) + cubic_drawn,
        digits=prose(calibration[0]) + _as_html(calibration[1]) + _as_html(detection[1]) + digits_drawn,
    )


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>splitpoint demo</title>
<link rel="icon" href="data:,">
<style>
$style
header, section { max-width: 64rem; }
table { margin-bottom: 1rem; }
.small-multiples { grid-template-columns: repeat(auto-fill, minmax(280px, 1fr)); }
</style>
</head>
<body>
<header>
<h1>splitpoint demo</h1>
<p class="prose">Two ordinary networks, trained without any thought of uncertainty, and what splitpoint adds after
training:
one forward pass gives the prediction, an interval or calibrated probabilities, and an epistemic score.</p>
</header>
<main>
<section>
<h2>Regression: where the data end, the score rises</h2>
$cubic
</section>
<section>
<h2>Classification: calibrated probabilities, and a score for what the network has not seen</h2>
$digits
</section>
</main>
</body>
</html>
"""
