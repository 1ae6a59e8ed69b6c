"""Run both tasks, write figures and one self-contained page, and return what to tell the user."""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Sequence
from pathlib import Path

from splitpoint.demo.figures import draw_cubic, draw_digits
from splitpoint.demo.tasks import (
    CALIBRATION_HEADER,
    CUBIC_HEADER,
    DETECTION_HEADER,
    run_cubic,
    run_digits,
)
from splitpoint.errors import DataError

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
    figures = {"cubic": out / "cubic.png", "digits": out / "digits.png"}
    draw_cubic(cubic, figures["cubic"])
    draw_digits(digits, figures["digits"])
    tables: list[tuple[str, Rows]] = [
        (CUBIC_TEXT, [CUBIC_HEADER, *cubic.table]),
        (DIGITS_TEXT, [CALIBRATION_HEADER, *digits.calibration_table]),
        ("", [DETECTION_HEADER, *digits.detection_table]),
    ]
    page = out / "index.html"
    page.write_text(_page(tables, figures), encoding="utf-8")
    text = "\n\n".join(f"{caption}\n\n{as_text(rows)}".strip("\n") for caption, rows in tables)
    files = "\n".join(f"  {path}" for path in (page, *figures.values()))
    return f"{text}\n\nDone in {time.perf_counter() - began:.0f} s. Page and figures:\n{files}"


def as_text(rows: Rows) -> str:
    """Rows as a plain table: first column left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _as_html(rows: Rows) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _page(tables: Sequence[tuple[str, Rows]], figures: dict[str, Path]) -> str:
    pictures = {name: base64.b64encode(path.read_bytes()).decode() for name, path in figures.items()}

    def picture(name: str, alt: str) -> str:
        return f'<img alt="{alt}" src="data:image/png;base64,{pictures[name]}">'

    cubic, calibration, detection = tables
    return PAGE.format(
        cubic=f"<p>{html.escape(cubic[0])}</p>{_as_html(cubic[1])}"
        + picture("cubic", "Predicted and true bounds above, epistemic score below, for three calibrations"),
        digits=f"<p>{html.escape(calibration[0])}</p>{_as_html(calibration[1])}{_as_html(detection[1])}"
        + picture("digits", "Reliability before and after calibration, and histograms of the epistemic score"),
    )


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>splitpoint demo</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c2530; --paper: #fff; --line: #d5dce3; --soft: #5b6672; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6ebf0; --paper: #14191f; --line: #33404d; --soft: #9fabb8; }}
}}
body {{ font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 0 auto; padding: 2rem 1rem 4rem; }}
h1 {{ font-size: 1.7rem; margin-bottom: .2rem; }}
h2 {{ font-size: 1.2rem; margin-top: 2.5rem; }}
p {{ max-width: 46rem; color: var(--soft); }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .35rem .9rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
img {{ width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 6px; }}
</style>
</head>
<body>
<h1>splitpoint demo</h1>
<p>Two ordinary networks, trained without any thought of uncertainty, and what splitpoint adds after training:
one forward pass gives the prediction, an interval or calibrated probabilities, and an epistemic score.</p>
<h2>Regression: where the data end, the score rises</h2>
{cubic}
<h2>Classification: calibrated probabilities, and a score for what the network has not seen</h2>
{digits}
</body>
</html>
"""
