"""Bad data get one sentence: what was expected, what came, what to do; odd but sound data work."""

import math

import pytest
import torch
from torch import nn

import splitpoint as sp
from refusals import CLASSIFIER, REGRESSOR, Hidden, both, case, drawn, fit, network, refused

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
    uq = fit(method, model, (x, y)).set_threshold((x, y), quantile=0.98)
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
