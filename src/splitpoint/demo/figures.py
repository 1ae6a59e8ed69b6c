"""The figures of the demonstration, drawn as those of reports are."""

from __future__ import annotations

from torch import Tensor

from splitpoint import metrics
from splitpoint.bench.artefacts import Curve, Reliability
from splitpoint.bench.drawings import histogram
from splitpoint.bench.record import Cell
from splitpoint.datasets.cubic import side_quantiles
from splitpoint.demo.tasks import LEVEL, CubicResult, DigitsResult
from splitpoint.report import gallery
from splitpoint.report.markup import figure

TITLES = {
    "split": "no calibration",
    "consistent": "consistency calibration",
    "conformal": "conformal calibration",
}
DIGITS = (
    "Left: accuracy against confidence on the test digits, hollow and dashed for the base model, full after "
    "calibration. Right: epistemic score of test digits (full outline) and of digits with shuffled pixels (dashed); "
    "images right of the upright line are flagged, as are 5% of the calibration digits."
)


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
    """Reliability before and after calibration, and the epistemic score on digits and on shuffled ones."""
    assert result.out.reference is not None
    before, after = (_reliability(probs, result.label) for probs in (result.out.base_probs, result.out.probs))
    scores = histogram(result.out.epistemic, result.ood.epistemic, float(result.out.reference.threshold))
    drawn = gallery.reliability("reliability", before, after) + gallery.histogram("epistemic score", scores)
    return figure(drawn, DIGITS, tiled=True)


def _reliability(probs: Tensor, label: Tensor) -> Reliability:
    found = metrics.reliability(probs, label)
    return Reliability(_numbers(found.confidence), _numbers(found.accuracy), _numbers(found.count))


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.double().flatten().tolist())
