"""A verdict on an ONNX file is that on the predictor which it was made of."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import splitpoint as sp
from export.networks import Maps, built, classes, images, network, numbers, pixels
from problems import drawn
from splitpoint import runtime
from splitpoint.prediction import Reference

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

LEVELS = (0.5, 0.8, 0.95)
ONLY_OF_PREDICTORS = {"set_coverage", "set_size", "set_level", "auroc_ood_energy"}
"""Files make no prediction sets and have no logits."""

RANKED = ("saved", "auroc", "aurc", "spearman")
"""Figures about the order of rows."""


def regressor(outputs=1, model=network, make=numbers, rows=300, **settings):
    method = sp.SplitPointRegressor(confidence_level=LEVELS, epochs=3, **settings)
    return fit(method, lambda: model(outputs), make, outputs, rows, None)


def classifier(model=network, make=classes, count=4, rows=300):
    return fit(sp.SplitPointClassifier(epochs=3), lambda: model(count), make, count, rows, make(rows, count, 1))


def fit(method, model, make, outputs, rows, calibration):
    uq = method.fit(built(model), make(rows, outputs, 0), calibration=calibration, progress=False)
    uq.set_threshold(make(max(rows, 20), outputs, 2))
    return SimpleNamespace(
        uq=uq, train=make(rows, outputs, 0), test=make(rows, outputs, 3), held_out=make(80, outputs, 5)
    )


CASES = {
    "three levels": regressor,
    "several outputs": lambda: regressor(3),
    "maps": lambda: regressor(2, Maps, images, 24, residuals="train"),
    "classes": classifier,
    "maps of classes": lambda: classifier(Maps, pixels, 3, 24),
}


SLOW = pytest.mark.slow
NEEDED = ("mean", "lowers", "uppers", "aleatoric", "epistemic", "total", "support")


def opened(uq, path, *example, **more):
    sp.export.onnx(uq, path, *example, **more)
    return runtime.load(path, threads=1)


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
@pytest.mark.parametrize("case", [pytest.param(name, marks=SLOW if "maps" in name else ()) for name in CASES])
def test_figures_are_those_of_the_predictor(case, tmp_path):
    own = CASES[case]()
    x = own.test[0]
    file = opened(own.uq, tmp_path / "uq.onnx", x[:3])
    more = {"train": own.train, "ood": x + 2, "calibration": own.held_out, "cost": False}
    wanted, found = sp.verdict(own.uq, own.test, **more), sp.verdict(file, own.test, **more)
    assert set(wanted.figures) - set(found.figures) <= ONLY_OF_PREDICTORS
    assert {"flag_rate", "flag_rate_nominal", "auroc_ood", "auroc_shift", "memorised"} <= found.figures.keys()
    for name, value in found.figures.items():
        close = 1e-3 if any(kind in name for kind in RANKED) else 1e-4  # rounding swaps rows that are hardly apart
        assert value == pytest.approx(wanted.figures[name], rel=close, abs=1e-6, nan_ok=True), name
    lights = {one.name: one.light for one in wanted.findings}
    assert {
        one.name: one.light for one in found.findings if one.name != "since_the_fit_base_model"
    }.items() <= lights.items()
    assert found.identity.keys() >= {"model", "digest", "method", "settings", "layer", "written with", "data"}
    assert found.identity["model"] == wanted.identity["model"]
    assert found.identity["method"] == wanted.identity["method"]


class Pair(nn.Module):
    """Two inputs."""

    def __init__(self):
        super().__init__()
        self.body = network(1)

    def forward(self, left, right):
        return self.body(torch.cat([left, right], 1))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A file with two inputs and no more fields than are needed, and its rows."""
    x, y = numbers(200, 1, 0)
    parts = x[:, :2], x[:, 2:]
    uq = sp.SplitPointRegressor(epochs=2, residuals="train").fit(built(Pair), (*parts, y), progress=False)
    file = opened(uq, tmp_path_factory.mktemp("pair") / "uq.onnx", *(part[:3] for part in parts), fields=NEEDED)
    return SimpleNamespace(uq=uq, file=file, left=parts[0], right=parts[1], y=y)


def test_inputs_come_by_place_by_name_nested_and_as_arrays(pair):
    left, right, y = pair.left, pair.right, pair.y
    wanted = sp.verdict(pair.uq, (left, right, y), cost=False).figures["winkler"]
    for data in (
        (left, right, y),
        ((left, right), y),
        [
            {"right": right[:90], "left": left[:90], "labels": y[:90]},
            {"left": left[90:], "right": right[90:], "labels": y[90:]},
        ],
        ({"right": right, "left": left}, y),
        (left.double().numpy(), right.numpy(), y.numpy()),
    ):
        assert sp.verdict(pair.file, data, cost=False).figures["winkler"] == pytest.approx(wanted, rel=1e-4)


def test_inputs_that_are_others_are_one_sentence(pair):
    for data in ((pair.left, pair.y), ({"left": pair.left, "middle": pair.right, "top": pair.right}, pair.y)):
        with pytest.raises(sp.DataError, match=r"Expected the inputs \('left', 'right'\) in every batch"):
            sp.verdict(pair.file, data)


def test_whole_numbers_are_numbers_as_for_a_predictor(tmp_path):
    x, y = drawn(1, 200, 5).mul(3).round().long(), drawn(2, 200, 1)
    uq = sp.SplitPointRegressor(epochs=2, residuals="train").fit(
        built(lambda: network(1)), (x.float(), y), progress=False
    )
    file = opened(uq, tmp_path / "uq.onnx", x[:3].float())
    wanted = sp.verdict(uq, (x, y), cost=False).figures
    assert sp.verdict(file, (x, y), cost=False).figures["winkler"] == pytest.approx(wanted["winkler"], rel=1e-4)


def test_a_field_that_was_left_out_is_named(tmp_path):
    x, y = numbers(200, 1, 0)
    uq = sp.SplitPointRegressor(epochs=2, residuals="train").fit(built(lambda: network(1)), (x, y), progress=False)
    lean = opened(uq, tmp_path / "lean.onnx", x[:3], fields=("mean", "lowers", "uppers", "support"))
    with pytest.raises(sp.SettingsError, match=r"but aleatoric, epistemic, total had been left out"):
        sp.verdict(lean, (x, y))


def test_nothing_is_said_of_a_cost_and_of_what_changed_since_the_fit(pair):
    found = sp.verdict(pair.file, (pair.left, pair.right, pair.y))
    said = {one.name: one for one in found.findings}
    assert "no base model to compare" in said["cost_ratio"].statement
    assert said["since_the_fit_base_model"].light == "unknown"
    assert math.isnan(found.figures.get("cost_ratio", math.nan))
    assert any(name.startswith("fit_") for name in said) == bool(pair.uq.checks)


def test_a_reference_goes_through_text_bit_by_bit():
    for kind in (torch.float32, torch.float64):
        quantiles = drawn(1, 2, 1, 1, 7).to(kind) / 3
        found = Reference.read(Reference(quantiles, quantiles[..., 4]).described())
        assert found.quantiles.dtype == kind
        assert torch.equal(found.quantiles, quantiles)
        assert torch.equal(found.threshold, quantiles[..., 4])
