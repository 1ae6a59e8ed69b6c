"""Bad models, layers, calibration data and thresholds get one sentence, and leave the model as it was."""

import copy
import math

import pytest
import torch
from torch import nn

import splitpoint as sp
from refusals import REGRESSOR, Hidden, both, case, drawn, fit, network, refused

# Models and layers


@both
@pytest.mark.parametrize("model", [lambda x: x, "resnet", None, nn.Linear])
def test_what_is_no_module(task, model):
    method, _, x, y = case(task)
    named = type(model).__name__ if not callable(model) else model.__name__
    refused(sp.SettingsError, lambda: fit(method, model, (x, y)), "torch.nn.Module", named)


@both
def test_a_layer_that_does_not_exist(task):
    method, model, x, y = case(task)
    method = type(method)(epochs=2, layer="body.3")
    refused(
        sp.LayerError, lambda: fit(method, model, (x, y)), "name of a layer", "none called 'body.3'", "did you mean"
    )


def test_a_layer_nearly_spelled_right_is_suggested():
    _, _, x, y = case("regression")
    method = sp.SplitPointRegressor(epochs=2, layer="bdy")
    text = refused(sp.LayerError, lambda: fit(method, Hidden(1), (x, y)), "layer", "'bdy'", "did you mean")
    assert "'body'" in text


@both
def test_a_module_that_is_not_part_of_the_model(task):
    method, model, x, y = case(task)
    method = type(method)(epochs=2, layer=nn.Linear(3, 3))
    refused(sp.LayerError, lambda: fit(method, model, (x, y)), "module of the model", "not part of it", "pass one")


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.spare = network(1), nn.Linear(3, 3)

    def forward(self, x):
        return self.body(x)


def test_a_layer_that_does_not_run():
    _, _, x, y = case("regression")
    method = sp.SplitPointRegressor(epochs=2, layer="spare")
    refused(sp.LayerError, lambda: fit(method, Unused(), (x, y)), "'spare' to run", "it did not", "sp.layers")


@pytest.mark.parametrize("layer", [3, 0.5])
def test_a_layer_of_no_known_kind(layer):
    _, model, x, y = case("regression")
    method = sp.SplitPointRegressor(epochs=2, layer=layer)
    refused(sp.LayerError, lambda: fit(method, model, (x, y)), "None, a name, a module", type(layer).__name__)


def test_no_layer_at_all():
    _, model, x, y = case("regression")
    method = sp.SplitPointRegressor(epochs=2, layer=[])
    refused(sp.LayerError, lambda: fit(method, model, (x, y)), "at least one layer", "an empty list", "layer=None")


def test_a_callable_that_gives_other_rows():
    _, model, x, y = case("regression")
    method = sp.SplitPointRegressor(epochs=2, layer=lambda x: x[:5])
    refused(sp.LayerError, lambda: fit(method, model, (x, y)), "60 rows", "but got (5, 3)", "choose another layer")


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.sin(x) * self.scale


@both
def test_a_model_without_a_linear_layer(task):
    method, _, x, y = case(task)
    y = drawn(1, 60, 3) if task == "regression" else y
    refused(sp.LayerError, lambda: fit(method, Plain(), (x, y)), "Linear or Conv", "none was seen", "name a layer")
    named = type(method)(epochs=2, layer=lambda x: x)
    assert fit(named, Plain(), (x, y))(x).epistemic.isfinite().all()


@both
def test_a_model_of_several_outputs(task):
    method, model, x, y = case(task)

    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            out = self.inner(x)
            return {"first": out, "second": 2 * out}

    refused(sp.DataError, lambda: fit(method, Several(), (x, y)), "a tensor", "'first', 'second'", "output_key=")
    method = type(method)(epochs=2, output_key="third")
    refused(sp.DataError, lambda: fit(method, Several(), (x, y)), "output_key='third'", "'first', 'second'")


@both
def test_data_without_targets(task):
    method, model, x, _ = case(task)
    refused(sp.DataError, lambda: fit(method, model, x), "a target", "but got", "give the data together")


@both
@pytest.mark.parametrize("data", [3, None])
def test_what_is_no_data(task, data):
    method, model, _, _ = case(task)
    refused(sp.DataError, lambda: fit(method, model, data), "a DataLoader", type(data).__name__)


@both
def test_a_failed_fit_leaves_the_model_as_it_was(task):
    method, model, x, y = case(task)
    model = nn.Sequential(nn.BatchNorm1d(3), *model).train()
    before = copy.deepcopy(model.state_dict())
    broken = x.clone()
    broken[50] = math.nan
    with pytest.raises(sp.DataError):
        fit(method, model, [(x, y), (broken, y)])
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


# Intervals and thresholds


def test_a_conformal_interval_without_calibration_data():
    _, model, x, y = case("regression")
    method = sp.SplitPointRegressor(interval="conformal", epochs=2)
    refused(
        sp.SettingsError,
        lambda: fit(method, model, (x, y)),
        "calibration data for interval='conformal'",
        "but got none",
        "pass calibration=",
    )


def test_too_few_calibration_rows():
    _, model, x, y = case("regression")
    refused(
        sp.DataError,
        lambda: fit(REGRESSOR, model, (x, y), calibration=(x[:10], y[:10])),
        "at least 19 calibration residuals on each side",
        "level 0.95, but got",
        "give more calibration data",
    )


def test_calibration_rows_with_too_few_on_one_side():
    _, model, x, y = case("regression")
    above = model(x).detach() + 1
    above[:3] -= 2
    refused(
        sp.DataError,
        lambda: fit(REGRESSOR, model, (x, y), calibration=(x, above)),
        "on each side",
        "but got 3",
        "give more calibration data",
    )


def test_too_few_calibration_rows_for_a_cross_validated_gate():
    _, model, x, y = case("classification")
    method = sp.SplitPointClassifier(mars="free", delta0="cv", epochs=2)
    refused(sp.DataError, lambda: fit(method, model, (x, y), calibration=(x[:9], y[:9])), "at least 10", "but got 9")


@both
def test_a_threshold_that_was_not_set(task):
    method, model, x, y = case(task)
    out = fit(method, model, (x, y))(x)
    for name in ("flagged", "percentile"):
        refused(sp.SettingsError, lambda n=name: getattr(out, n), "a threshold", "none was set", "set_threshold")


@both
@pytest.mark.parametrize("quantile", [0, 1, -0.5, 95, math.nan])
def test_a_quantile_out_of_range(task, quantile):
    method, model, x, y = case(task)
    uq = fit(method, model, (x, y))
    refused(sp.SettingsError, lambda: uq.set_threshold((x, y), quantile), "(0, 1)", f"but got {quantile}")
    assert uq.reference is None


@both
def test_a_threshold_on_rows_that_are_no_numbers(task):
    method, model, x, y = case(task)
    uq = fit(method, model, (x, y))
    x[2] = math.nan
    refused(sp.DataError, lambda: uq.set_threshold((x, y)), "finite support", "NaN or inf", "check the data")


@both
def test_predicting_on_nothing(task):
    method, model, x, y = case(task)
    uq = fit(method, model, (x, y))
    refused(sp.DataError, lambda: uq.predict([]), "data to predict on", "no batch", "at least one row")


def test_an_interval_of_a_level_that_was_not_fitted():
    _, model, x, y = case("regression")
    out = fit(REGRESSOR, model, (x, y))(x)
    refused(sp.SettingsError, lambda: out.interval(0.5), "0.95", "but got 0.5", "confidence_level=(0.5, 0.95)")
