"""The public contract of the two methods: settings, fit, the predictor and its fields."""

import copy
from dataclasses import FrozenInstanceError, is_dataclass

import pytest
import torch
from torch import nn

import splitpoint as sp
from contract import (
    CASES,
    ROWS,
    classification_data,
    every,
    fitted,
    made,
    methods,
    network,
    regression_data,
)
from problems import EXACT, assert_same, tensors

# Settings


@methods
def test_settings_are_a_frozen_dataclass(kind):
    method = kind()
    assert is_dataclass(method)
    with pytest.raises(FrozenInstanceError):
        method.epochs = 7
    assert method == kind()
    assert method != kind(epochs=7)


@methods
def test_the_papers_recipe_is_a_preset_of_the_same_class(kind):
    paper = kind.paper(epochs=9)
    assert type(paper) is kind
    assert paper.epochs == 9
    assert paper.learning_rate == 1e-4
    assert not paper.standardise


def test_the_papers_recipes_have_the_papers_settings():
    regressor, classifier = sp.SplitPointRegressor.paper(0.9), sp.SplitPointClassifier.paper()
    assert regressor.levels == (0.9,)
    assert (regressor.residuals, regressor.interval, regressor.epochs) == ("train", "split", 400)
    assert (classifier.mars, classifier.delta0, classifier.epochs) == ("free", 0.01, 300)


@methods
def test_nothing_unfitted_can_predict(kind):
    method = kind()
    assert not callable(method)
    assert not hasattr(method, "predict")
    assert not hasattr(method, "save")


def test_levels_are_sorted_and_unique():
    method = sp.SplitPointRegressor(confidence_level=(0.9, 0.5, 0.9))
    assert method.levels == (0.5, 0.9)
    assert sp.SplitPointRegressor(0.8).levels == (0.8,)


# The predictor


@every
def test_fit_returns_a_module_that_stays_in_eval_mode(case):
    uq, _, (x, _) = fitted(case)
    assert isinstance(uq, nn.Module)
    assert not uq.training
    before = uq(x)
    assert uq.train() is uq
    assert not uq.training
    assert_same(before, uq(x), **EXACT)


@every
def test_every_part_of_a_predictor_is_in_eval_mode(case):
    uq, *_ = fitted(case)
    assert [name for name, module in uq.train().named_modules() if module.training] == []


@every
def test_a_prediction_asks_for_no_gradient(case):
    uq, _, (x, _) = fitted(case)
    assert not any(value.requires_grad for value in tensors(uq(x.clone().requires_grad_())).values())


@every
@pytest.mark.parametrize("mode", [True, False])
def test_the_model_is_left_bit_for_bit_as_it_was(case, mode):
    method, model, data = made(case)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), *model).train(mode)
    state = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    uq = method.fit(model, data, progress=False)
    first, second = uq(data[0]), uq(data[0])
    assert_same(first, second, **EXACT)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


class Counting(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


@every
def test_one_forward_pass_per_prediction(case):
    method, model, data = made(case)
    counting = Counting(model)
    uq = method.fit(counting, data, progress=False)
    assert counting.calls == 1
    uq(data[0])
    assert counting.calls == 2


@every
def test_uq_takes_what_the_models_forward_takes(case):
    method, model, (x, y) = made(case)

    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, first, *, second):
            return self.inner(torch.cat([first, second], 1))

    data = {"first": x[:, :1], "second": x[:, 1:], "labels": y}
    uq = method.fit(Keyword(), data, progress=False)
    plain = method.fit(model, (x, y), progress=False)
    assert_same(uq(x[:, :1], second=x[:, 1:]), plain(x), **EXACT)
    assert_same(uq.predict(data), plain(x), **EXACT)


# Fields


@every
def test_rows_come_first_and_everything_is_finite(case):
    uq, _, (x, _) = fitted(case)
    out = uq(x)
    assert len(out) == ROWS
    assert all(len(value) == ROWS and value.isfinite().all() for value in tensors(out).values())
    assert (out.epistemic >= 0).all()
    assert (out.aleatoric >= 0).all()


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("regressor")])
def test_regression_fields(case):
    uq, model, (x, y) = fitted(case)
    out = uq(x)
    assert isinstance(out, sp.RegressionPrediction)
    for name in ("mean", "lower", "upper", "aleatoric", "epistemic", "total", "mar", "mar_up", "mar_down"):
        assert getattr(out, name).shape == y.shape, name
    with torch.no_grad():
        assert torch.equal(out.mean, model(x))
    assert (out.lower < out.mean).all()
    assert (out.mean < out.upper).all()
    assert all(torch.equal(bound, end) for bound, end in zip(out.interval(0.95), (out.lower, out.upper), strict=True))


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("regressor")])
def test_regression_scores_are_the_equations_of_the_reported_mars(case):
    uq, _, (x, _) = fitted(case)
    out = uq(torch.cat([x, 10 * x]))
    z, up, down = out.mar.double(), out.mar_up.double(), out.mar_down.double()
    size = torch.maximum(z, torch.maximum(up, down)).square()
    assert ((out.epistemic - (2 * up * down - z * (up + down)).abs()).abs() <= 1e-6 * size).all()
    assert torch.equal(out.total, out.mar_up + out.mar_down + out.epistemic.sqrt())
    width = (out.upper.double() - out.lower.double()).float()
    torch.testing.assert_close(out.aleatoric, width, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("classifier")])
def test_classification_fields(case):
    uq, model, (x, y) = fitted(case)
    out = uq(x)
    assert isinstance(out, sp.ClassificationPrediction)
    assert out.probs.shape == out.base_probs.shape == out.mar.shape == (ROWS, 3)
    assert out.label.shape == out.aleatoric.shape == out.epistemic.shape == out.total.shape == y.shape
    with torch.no_grad():
        torch.testing.assert_close(out.base_probs, model(x).softmax(1))
    assert torch.equal(out.label, out.probs.argmax(1))
    entropy = torch.distributions.Categorical(probs=out.probs).entropy()
    torch.testing.assert_close(out.aleatoric, entropy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("classifier")])
@pytest.mark.parametrize("calibrated", [False, True])
def test_classification_scores_are_the_equations_of_the_reported_mars(case, calibrated):
    _, model, _ = made(case)
    held_out = classification_data(model, seed=5) if calibrated else None
    uq, _, (x, _) = fitted(case, calibration=held_out)
    out = uq(torch.cat([x, 10 * x]))
    p = out.base_probs.double()
    expected = (2 * p * (1 - p) - out.mar).abs().sum(1)
    torch.testing.assert_close(out.epistemic.double(), expected, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(out.total, out.mar.sum(1) + out.epistemic, rtol=1e-5, atol=1e-6)


def test_any_fitted_level_can_be_asked_for():
    model = network(1)
    x, y = regression_data(model)
    uq = sp.SplitPointRegressor((0.5, 0.8, 0.9), epochs=3, folds=0).fit(model, (x, y), progress=False)
    out = uq(x)
    widths = []
    for index, level in enumerate((0.5, 0.8, 0.9)):
        lower, upper = out.interval(level)
        assert torch.equal(lower, out.lowers[..., index])
        assert torch.equal(upper, out.uppers[..., index])
        widths.append(upper - lower)
    assert torch.equal(out.lower, out.interval(0.9)[0])
    assert torch.equal(out.upper, out.interval(0.9)[1])
    assert (widths[0] < widths[1]).all()
    assert (widths[1] < widths[2]).all()
    with pytest.raises(sp.SettingsError, match=r"Expected one of the fitted confidence levels .* got 0\.7; fit with"):
        out.interval(0.7)
