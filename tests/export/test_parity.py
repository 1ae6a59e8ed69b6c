"""What a file in ONNX Runtime says, against what the predictor says: every kind of prediction, any number of rows."""

import pytest

import splitpoint as sp
from export.networks import Maps, built, checked, classes, images, network, numbers, pixels

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SHAPES = {"single": (numbers, 1, network), "several": (numbers, 3, network), "dense": (images, 2, Maps)}
LEVELS = {"one": 0.9, "three": (0.5, 0.8, 0.9)}
QUICK = {("conformal", "three", "single"), ("consistent", "three", "dense")}


def some_slow(cases, quick):
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    ("interval", "levels", "shape"),
    some_slow([(i, n, s) for i in ("split", "consistent", "conformal") for n in LEVELS for s in SHAPES], QUICK),
)
def test_regression(interval, levels, shape, tmp_path):
    make, outputs, model = SHAPES[shape]
    rows = 24 if shape == "dense" else 200
    method = sp.SplitPointRegressor(interval=interval, confidence_level=LEVELS[levels], epochs=3, residuals="train")
    held_out = make(rows, outputs, 1) if interval == "conformal" else None
    uq = method.fit(built(lambda: model(outputs)), make(rows, outputs, 0), calibration=held_out, progress=False)
    x = make(rows, outputs, 3)[0]
    more = [[x.repeat(1, 1, 2, 3)[:2]]] if shape == "dense" else []
    file = checked(uq.set_threshold(make(rows, outputs, 2)), tmp_path / "uq.onnx", [x], *more)
    assert file.levels == uq.method.levels


KINDS = {"one logit": (2, 1), "ten": (10, 10), "thousand": (1000, 1000), "dense": (4, 4)}


@pytest.mark.parametrize(
    ("mars", "calibrated", "kind"),
    some_slow(
        [(m, c, k) for m in ("simplex", "free") for c in (False, True) for k in KINDS], {("simplex", True, "ten")}
    ),
)
def test_classification(mars, calibrated, kind, tmp_path):
    count, outputs = KINDS[kind]
    make, model, rows = (pixels, Maps, 24) if kind == "dense" else (classes, network, 200)
    held_out = make(rows, count, 1) if calibrated else None
    method = sp.SplitPointClassifier(mars=mars, epochs=3)
    uq = method.fit(built(lambda: model(outputs)), make(rows, count, 0), calibration=held_out, progress=False)
    x = make(rows, count, 3)[0]
    more = [[x.repeat(1, 1, 2, 3)[:2]]] if kind == "dense" else []
    file = checked(uq.set_threshold(make(rows, count, 2)), tmp_path / "uq.onnx", [x], *more)
    assert file.classes == count


@pytest.mark.slow
@pytest.mark.parametrize("method", [sp.SplitPointRegressor.paper, sp.SplitPointClassifier.paper])
def test_the_paper_s_recipe(method, tmp_path):
    regression = method == sp.SplitPointRegressor.paper
    make, outputs = (numbers, 1) if regression else (classes, 3)
    uq = method(epochs=3).fit(built(lambda: network(outputs)), make(200, outputs, 0), progress=False)
    assert sp.export.onnx(uq, tmp_path / "uq.onnx", make(20, outputs, 3)[0]) <= 1e-5
