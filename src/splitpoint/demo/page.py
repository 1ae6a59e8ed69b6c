"""The page of the demonstration: both tasks are run, their tables and figures written as one self-contained file."""

from __future__ import annotations

import html
import string
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from torch import Tensor

from splitpoint import metrics
from splitpoint.bench.artefacts import Curve, Reliability
from splitpoint.bench.drawings import histogram
from splitpoint.bench.record import Cell
from splitpoint.datasets.cubic import side_quantiles
from splitpoint.demo.tasks import LEVEL, CubicResult, DigitsResult, Row, run_cubic, run_digits
from splitpoint.errors import DataError
from splitpoint.files import write_text
from splitpoint.report import gallery
from splitpoint.report.markup import figure, prose
from splitpoint.report.page import asset

CUBIC_TEXT = (
    "Cubic regression, log-normal noise. Trained on 2,000 points in [-4, 4]; coverage, width and Winkler score on "
    "4,000 fresh points there (nominal coverage 0.95, in all and on each side); AUROC of support for |x| > 4 on "
    "4,000 points in [-6, 6]. One run."
)
DIGITS_TEXT = (
    "A small CNN on scikit-learn's digits: 900 images to train, 400 to calibrate, 497 to test. AUROC of a score for "
    "the base model's errors, for FGSM-attacked images and for images with shuffled pixels. One run."
)
TITLES = {"split": "no calibration", "consistent": "consistency calibration", "conformal": "conformal calibration"}
DIGITS_CAPTION = (
    "Left: accuracy against confidence on the test digits, hollow and dashed for the base model, full after "
    "calibration. Right: lack of support of test digits (full outline) and of digits with shuffled pixels (dashed); "
    "images right of the upright line are flagged, as are 5% of the calibration digits."
)


def run(out: Path, seed: int = 0, progress: bool = True) -> str:
    """Run the demonstration into the folder `out` and return the report as text."""
    began = time.perf_counter()
    if out.exists() and not out.is_dir():
        raise DataError(f"Expected a folder to write to, but {out} is a file; give another one.")
    out.mkdir(parents=True, exist_ok=True)
    cubic, digits = run_cubic(seed, progress), run_digits(seed, progress)
    page = out / "index.html"
    write_text(page, _page(cubic, digits))
    tables = [as_text(rows) for rows in (digits.calibration_table, digits.detection_table)]
    text = "\n\n".join([CUBIC_TEXT, as_text(cubic.table), DIGITS_TEXT, *tables])
    return f"{text}\n\nDone in {time.perf_counter() - began:.0f} s. Page with figures:\n  {page}"


def as_text(rows: Sequence[Row]) -> str:
    """Rows as a plain table: first column left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _as_html(rows: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in rows[0])
    body = "".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows[1:]
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _page(cubic: CubicResult, digits: DigitsResult) -> str:
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    tables = _as_html(digits.calibration_table) + _as_html(digits.detection_table)
    return string.Template(template).substitute(
        style=asset("page.css"),
        cubic=prose(CUBIC_TEXT) + _as_html(cubic.table) + cubic_figure(cubic),
        digits=prose(DIGITS_TEXT) + tables + digits_figure(digits),
    )


# Figures, drawn as those of reports are


def cubic_figure(result: CubicResult) -> str:
    """A drawing for each calibration of the interval: predictions and truth above, epistemic score below."""
    down, up = side_quantiles("log_normal", LEVEL)
    x = result.grid.flatten()
    shown = [
        Curve(
            Cell("demo", "", "log_normal", "cubic", TITLES[name]),
            x=_numbers(x),
            mean=_numbers(out.mean),
            lower=_numbers(out.lower),
            upper=_numbers(out.upper),
            epistemic=_numbers(out.epistemic),
            truth=_numbers(x**3),
            true_lower=_numbers(x**3 - down),
            true_upper=_numbers(x**3 + up),
            train_x=_numbers(result.train.x),
            train_y=_numbers(result.train.y),
        )
        for name, out in result.on_grid.items()
    ]
    return gallery.curves("cubic", shown)


def digits_figure(result: DigitsResult) -> str:
    """Reliability before and after calibration, and the lack of support of digits and of shuffled ones."""
    assert result.out.reference is not None
    before, after = (_reliability(probs, result.label) for probs in (result.out.base_probs, result.out.probs))
    scores = histogram(result.out.support, result.ood.support, float(result.out.reference.threshold))
    drawn = gallery.reliability("reliability", before, after) + gallery.histogram("support", scores)
    return figure(drawn, DIGITS_CAPTION, tiled=True)


def _reliability(probs: Tensor, label: Tensor) -> Reliability:
    found = metrics.reliability(probs, label)
    return Reliability(_numbers(found.confidence), _numbers(found.accuracy), _numbers(found.count))


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.double().flatten().tolist())
