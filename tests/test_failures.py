"""Bad input gets one sentence: what was expected, what came, what to do; odd but sound input works."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp

REGRESSOR = sp.SplitPointRegressor(epochs=2, folds=0)
CLASSIFIER = sp.SplitPointClassifier(epochs=2)
both = pytest.mark.parametrize("task", ["regression", "classification"])


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(outputs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs)).eval()


def case(task, rows=60):
    x = drawn(0, rows, 3)
    if task == "regression":
        return REGRESSOR, network(1), x, drawn(1, rows, 1)
    return CLASSIFIER, network(3), x, torch.arange(rows) % 3


def refused(kind, call, expected, came, advice=""):
    """The error of `call`, one sentence with the three parts in order."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert isinstance(caught.value, sp.SplitPointError)
    assert text.startswith("Expected ")
    assert text.endswith((".", "?"))
    assert "\n" not in text
    places = [text.find(part) for part in (expected, came, advice)]
    assert -1 not in places, text
    assert places[0] < places[1], text
    if advice:
        assert places[1] <= places[2], text
        assert ";" in text, text
    return text


def fit(method, model, data, **arguments):
    return method.fit(model, data, progress=False, **arguments)


# Data


@both
@pytest.mark.parametrize("form", ["pair", "list", "loader"])
def test_empty_data(task, form):
    method, model, x, y = case(task)
    dataset = torch.utils.data.TensorDataset(x[:0], y[:0])
    data = {"pair": (x[:0], y[:0]), "list": [], "loader": torch.utils.data.DataLoader(dataset)}[form]
    refused(sp.DataError, lambda: fit(method, model, data), "data", "empty", "pass at least two rows")


@both
def test_batches_without_rows(task):
    method, model, x, y = case(task)
    refused(sp.DataError, lambda: fit(method, model, [(x[:0], y[:0])]), "rows", "but", "")


@both
def test_data_without_a_single_target(task):
    method, model, x, y = case(task)
    missing = torch.full_like(y, torch.nan) if task == "regression" else torch.full_like(y, -100)
    refused(sp.DataError, lambda: fit(method, model, (x, missing)), "rows", "but got", "")


@both
def test_calibration_data_without_a_single_target(task):
    method, model, x, y = case(task)
    missing = torch.full_like(y, torch.nan) if task == "regression" else torch.full_like(y, -100)
    refused(sp.DataError, lambda: fit(method, model, (x, y), calibration=(x, missing)), "", "but got", "")


@both
def test_empty_calibration_data(task):
    method, model, x, y = case(task)
    refused(
        sp.DataError,
        lambda: fit(method, model, (x, y), calibration=(x[:0], y[:0])),
        "data",
        "calibration data are empty",
        "pass",
    )


@both
def test_one_row(task):
    method, model, x, y = case(task)
    refused(sp.DataError, lambda: fit(method, model, (x[:1], y[:1])), "at least two rows", "but got", "give more data")


@pytest.mark.parametrize("rows", [2, 3, 9, 10])
@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_few_rows_work_with_the_default_number_of_folds(kind, rows):
    task = "regression" if kind is sp.SplitPointRegressor else "classification"
    _, model, x, y = case(task, rows)
    out = fit(kind(epochs=2), model, (x, y))(x)
    assert out.epistemic.isfinite().all()


def test_all_residuals_on_one_side_work():
    _, model, x, _ = case("regression")
    y = model(x).detach() + drawn(2, 60, 1).abs()
    out = fit(REGRESSOR, model, (x, y))(x)
    assert all(t.isfinite().all() for t in (out.lower, out.upper, out.epistemic))
    assert ((y <= out.upper).double().mean()) > 0.8


def test_constant_targets_work():
    _, model, x, _ = case("regression")
    out = fit(REGRESSOR, model, (x, torch.full((60, 1), 3.0)))(x)
    assert all(t.isfinite().all() for t in (out.lower, out.upper, out.epistemic))


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_targets(value):
    _, model, x, y = case("regression")
    y[7] = value
    refused(sp.DataError, lambda: fit(REGRESSOR, model, (x, y)), "finite targets", "but got inf", "clean the targets")


@both
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_no_numbers(task, value):
    method, model, x, y = case(task)
    x[3, 1] = value
    refused(sp.DataError, lambda: fit(method, model, (x, y)), "finite", "but got NaN or inf", "check")


class Hidden(nn.Module):
    """Features with a NaN that the output does not show."""

    def __init__(self, outputs):
        super().__init__()
        self.body, self.last = nn.Linear(3, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return torch.nan_to_num(self.last(self.body(x)))


@both
def test_features_that_are_no_numbers(task):
    method, _, x, y = case(task)
    x[3, 1] = math.nan
    method = type(method)(epochs=2, layer="body")
    model = Hidden(1 if task == "regression" else 3)
    refused(sp.DataError, lambda: fit(method, model, (x, y)), "finite features", "NaN or inf", "choose another layer")


class Broken(nn.Module):
    def __init__(self, outputs, value):
        super().__init__()
        self.inner, self.value = network(outputs), value

    def forward(self, x):
        out = self.inner(x)
        return torch.where(torch.arange(len(out))[:, None] == 5, self.value, out)


@both
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_no_numbers(task, value):
    method, _, x, y = case(task)
    model = Broken(1 if task == "regression" else 3, value)
    refused(sp.DataError, lambda: fit(method, model, (x, y)), "finite outputs", "NaN or inf", "check the model")


@both
def test_a_row_that_is_no_number_at_prediction_time_spoils_no_other_and_is_flagged(task):
    method, model, x, y = case(task)
    uq = fit(method, model, (x, y)).set_threshold((x, y), quantile=0.99)
    broken = x.clone()
    broken[3] = math.nan
    out, clean = uq(broken), uq(x)
    assert out.flagged[3].all()
    others = torch.arange(60) != 3
    torch.testing.assert_close(out.epistemic[others], clean.epistemic[others])


# Shapes


@pytest.mark.parametrize("shape", [(60, 2), (60, 1, 1), (30, 2)])
def test_regression_targets_of_a_wrong_shape(shape):
    _, model, x, _ = case("regression")
    rows = shape[0]
    text = refused(
        sp.ShapeError,
        lambda: fit(REGRESSOR, model, [(x, torch.zeros(shape))]),
        "(60, 1)",
        f"but got {shape}",
        "reshape the targets",
    )
    assert str(rows) in text


def test_a_pair_of_unequal_lengths():
    _, model, x, y = case("regression")
    refused(sp.DataError, lambda: fit(REGRESSOR, model, (x, y[:30])), "the same number of rows", "[60, 30]")


def test_a_vector_is_not_silently_broadcast_against_several_outputs():
    x = drawn(0, 60, 3)
    refused(
        sp.ShapeError, lambda: fit(REGRESSOR, network(60), (x, drawn(1, 60))), "(60, 60)", "but got (60,)", "reshape"
    )


def test_one_hot_labels():
    _, model, x, y = case("classification")
    one_hot = nn.functional.one_hot(y, 3)
    refused(sp.ShapeError, lambda: fit(CLASSIFIER, model, (x, one_hot)), "(60,)", "but got (60, 3)", "argmax")


def test_dense_logits_without_a_layer_that_has_positions():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 24)

        def forward(self, x):
            return self.linear(x).reshape(-1, 2, 3, 4)

    y = torch.zeros(60, 3, 4, dtype=torch.long)
    refused(
        sp.ShapeError,
        lambda: fit(CLASSIFIER, Wide(), (drawn(0, 60, 3), y)),
        "logits (N, K)",
        "(60, 2, 3, 4)",
        "choose a layer",
    )


# Labels


@pytest.mark.parametrize(("label", "classes"), [(3, 3), (99, 3), (-1, 3), (-7, 3), (2, 1)])
def test_labels_out_of_range(label, classes):
    x, y = drawn(0, 60, 3), torch.zeros(60, dtype=torch.long)
    y[10] = label
    last = max(classes - 1, 1)
    refused(
        sp.DataError,
        lambda: fit(CLASSIFIER, network(classes), (x, y)),
        f"labels from 0 to {last}",
        f"but got {label}",
        "check the labels",
    )


@pytest.mark.parametrize("label", [0.5, 1.9, math.nan])
def test_fractional_labels(label):
    _, model, x, y = case("classification")
    y = y.float()
    y[4] = label
    refused(sp.DataError, lambda: fit(CLASSIFIER, model, (x, y)), "class indices", "fractions or NaN", "check")


def test_whole_numbers_in_floats_are_labels():
    _, model, x, y = case("classification")
    one, other = (fit(CLASSIFIER, model, (x, label))(x) for label in (y, y.double()))
    assert torch.equal(one.epistemic, other.epistemic)


# Probabilities and logits


def test_probabilities_given_as_logits():
    _, model, x, y = case("classification")
    softmax = nn.Sequential(*model, nn.Softmax(1))
    refused(
        sp.DataError, lambda: fit(CLASSIFIER, softmax, (x, y)), "logits", "returns probabilities", "use output='probs'"
    )


@pytest.mark.parametrize("outputs", [1, 3])
def test_logits_given_as_probabilities(outputs):
    x = drawn(0, 60, 3)
    y = torch.arange(60) % max(outputs, 2)
    method = sp.SplitPointClassifier(epochs=2, output="probs")
    refused(
        sp.DataError,
        lambda: fit(method, network(outputs), (x, y)),
        "probabilities in [0, 1]",
        "other numbers",
        "use output='logits'",
    )


# Models and layers


@both
@pytest.mark.parametrize("model", [lambda x: x, "resnet", None, nn.Linear])
def test_what_is_no_module(task, model):
    method, _, x, y = case(task)
    refused(sp.SettingsError, lambda: fit(method, model, (x, y)), "torch.nn.Module", type(model).__name__)


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


def test_calibration_rows_on_one_side_only():
    _, model, x, y = case("regression")
    above = model(x).detach() + 1
    refused(
        sp.DataError,
        lambda: fit(REGRESSOR, model, (x, y), calibration=(x, above)),
        "on each side",
        "but got 0",
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
    refused(sp.DataError, lambda: uq.set_threshold((x, y)), "finite epistemic", "NaN or inf", "check the data")


@both
def test_predicting_on_nothing(task):
    method, model, x, y = case(task)
    uq = fit(method, model, (x, y))
    refused(sp.DataError, lambda: uq.predict([]), "data to predict on", "no batch", "at least one row")


def test_an_interval_of_a_level_that_was_not_fitted():
    _, model, x, y = case("regression")
    out = fit(REGRESSOR, model, (x, y))(x)
    refused(sp.SettingsError, lambda: out.interval(0.5), "0.95", "but got 0.5", "confidence_level=(0.5, 0.95)")


# Settings

SHARED = [
    ("rows_per_call", 0),
    ("positions", 0),
    ("width", 0),
    ("epochs", 0),
    ("epochs", -3),
    ("batch_size", 0),
    ("patience", 0),
    ("learning_rate", 0.0),
    ("learning_rate", -1.0),
    ("learning_rate", math.nan),
    ("learning_rate", math.inf),
    ("weight_decay", -0.1),
    ("weight_decay", math.nan),
    ("held_back", -0.1),
    ("held_back", 1.0),
    ("held_back", math.nan),
    ("mar_layers", -1),
]
REGRESSION = [
    ("confidence_level", 0.0),
    ("confidence_level", 1.0),
    ("confidence_level", 95),
    ("confidence_level", -0.5),
    ("confidence_level", math.nan),
    ("confidence_level", ()),
    ("confidence_level", (0.5, 1.5)),
    ("confidence_level", None),
    ("confidence_level", "high"),
    ("residuals", "test"),
    ("interval", "wide"),
    ("quantile_loss", "mse"),
    ("factor_limit", 0.5),
    ("factor_limit", math.nan),
    ("quantile_layers", -1),
    ("folds", -1),
]
CLASSIFICATION = [
    ("output", "prob"),
    ("mars", "paper"),
    ("delta0", -0.1),
    ("delta0", "best"),
    ("delta0", None),
    ("delta0", math.nan),
    ("support_mass", 0.0),
    ("support_mass", 1.0),
    ("steepness", 0.0),
    ("steepness", math.nan),
    ("correction_prior", 0.0),
    ("correction_prior", math.nan),
]


def check_setting(kind, name, value):
    with pytest.raises(sp.SettingsError) as caught:
        kind(**{name: value})
    text = str(caught.value)
    assert text.startswith("Expected ")
    words = [name, "confidence levels"] if name == "confidence_level" else [name]
    assert any(word in text for word in words), text
    assert ", but got" in text, text
    came = text.split(", but got")[1]
    assert str(value) in came, text


@pytest.mark.parametrize(("name", "value"), SHARED)
@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_bad_settings_that_the_methods_share(kind, name, value):
    check_setting(kind, name, value)


@pytest.mark.parametrize(("name", "value"), REGRESSION)
def test_bad_settings_of_the_regressor(name, value):
    check_setting(sp.SplitPointRegressor, name, value)


@pytest.mark.parametrize(("name", "value"), CLASSIFICATION)
def test_bad_settings_of_the_classifier(name, value):
    check_setting(sp.SplitPointClassifier, name, value)


@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_presets_check_their_changes_too(kind):
    with pytest.raises(sp.SettingsError, match=r"Expected epochs >= 1 or None, but got 0\."):
        kind.paper(epochs=0)
    with pytest.raises(TypeError, match="surprise"):
        kind(surprise=1)


@both
def test_unequal_numbers_of_models_and_data_sets(task):
    method, model, x, y = case(task)
    refused(
        sp.SettingsError,
        lambda: method.fit_many([model, model], [(x, y)], progress=False),
        "as many data sets as models",
        "but got 1 for 2",
    )


@both
def test_models_of_unequal_shape_in_one_stack(task):
    method, model, x, y = case(task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        other = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1 if task == "regression" else 3))
    refused(
        sp.SettingsError,
        lambda: method.fit_many([model, other], [(x, y), (x, y)], progress=False),
        "equal feature widths",
        "but got [5, 8]",
        "fit them one by one",
    )


def test_targets_that_form_no_tensor():
    _, model, x, _ = case("regression")
    batches = [(x, np.array(["a"] * 60))]
    refused(sp.DataError, lambda: fit(REGRESSOR, model, batches), "targets that form a tensor", "but got")
