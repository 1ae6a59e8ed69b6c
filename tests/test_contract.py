"""The public contract of the two methods: settings, fit, the predictor, its fields, and the data they take."""

import copy
from dataclasses import FrozenInstanceError, fields, is_dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from problems import CLOSE, EXACT, assert_same, tensors

ROWS = 160


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(outputs, seed=0, inputs=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs)).eval()


def regression_data(model, seed=1, rows=ROWS):
    x = drawn(seed, rows, 3)
    with torch.no_grad():
        return x, model(x) + drawn(seed + 1, rows, 1)


def classification_data(model, seed=1, rows=ROWS):
    x = drawn(seed, rows, 3)
    with torch.no_grad():
        probs = model(x).softmax(1)
    return x, torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed)).flatten()


def regression_case(method):
    model = network(1)
    return method, model, regression_data(model)


def classification_case(method):
    model = network(3)
    return method, model, classification_data(model)


CASES = {
    "regressor": lambda: regression_case(sp.SplitPointRegressor(epochs=3, folds=0)),
    "regressor_folds": lambda: regression_case(sp.SplitPointRegressor(epochs=2, folds=2)),
    "regressor_paper": lambda: regression_case(sp.SplitPointRegressor.paper(epochs=3)),
    "classifier": lambda: classification_case(sp.SplitPointClassifier(epochs=3)),
    "classifier_free": lambda: classification_case(sp.SplitPointClassifier(epochs=3, mars="free")),
    "classifier_paper": lambda: classification_case(sp.SplitPointClassifier.paper(epochs=3)),
}
every = pytest.mark.parametrize("case", CASES)
methods = pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])


def made(case):
    return CASES[case]()


def fitted(case, **arguments):
    method, model, data = made(case)
    return method.fit(model, data, progress=False, **arguments), model, data


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


# Rows


@every
def test_permuting_a_batch_permutes_the_output(case):
    uq, _, (x, _) = fitted(case)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    assert_same(uq(x[order]), uq(x)[order], **CLOSE)


@every
def test_a_row_alone_is_predicted_as_in_a_batch(case):
    uq, _, (x, _) = fitted(case)
    whole = uq(x)
    for row in (0, 57, ROWS - 1):
        assert_same(uq(x[row : row + 1]), whole[row : row + 1], rtol=1e-5, atol=1e-5)


@every
def test_an_empty_batch_gives_an_empty_prediction(case):
    uq, _, (x, _) = fitted(case)
    whole, empty = uq(x), uq(x[:0])
    assert len(empty) == 0
    for name, value in tensors(whole).items():
        assert getattr(empty, name).shape == (0, *value.shape[1:]), name


@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_an_empty_batch_of_maps_gives_an_empty_prediction(kind):
    x = drawn(0, 6, 3, 4, 4)
    y = drawn(1, 6, 2, 4, 4) if kind is sp.SplitPointRegressor else torch.zeros(6, 4, 4, dtype=torch.long)
    uq = kind(epochs=1).fit(nn.Conv2d(3, 2, 1), (x, y), progress=False)
    whole, empty = uq(x), uq(x[:0])
    for name, value in tensors(whole).items():
        assert getattr(empty, name).shape == (0, *value.shape[1:]), name


@every
def test_predict_gives_every_row_in_order_on_the_cpu(case):
    uq, _, (x, y) = fitted(case)
    whole = uq(x)
    loader = DataLoader(TensorDataset(x, y), batch_size=37)
    for data in (loader, (x, y), x, TensorDataset(x, y), [(x[:9], y[:9]), (x[9:], y[9:])], [x[:9], x[9:]]):
        if isinstance(data, list) and isinstance(data[0], torch.Tensor):
            data = iter(data)
        out = uq.predict(data)
        assert all(value.device.type == "cpu" for value in tensors(out).values())
        assert_same(out, whole, **CLOSE)


# Randomness


@every
def test_the_seed_decides_everything(case):
    method, model, (x, y) = made(case)
    state = torch.get_rng_state()
    one = method.fit(model, (x, y), seed=4, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    other = method.fit(model, (x, y), seed=4, progress=False)
    assert_same(one(x), other(x), **EXACT)
    assert all(torch.equal(value, other.own_tensors()[name]) for name, value in one.own_tensors().items())
    torch.set_rng_state(state)


@pytest.mark.parametrize("case", [name for name in CASES if name != "classifier"])
def test_another_seed_gives_other_heads(case):
    method, model, (x, y) = made(case)
    one, other = (method.fit(model, (x, y), seed=seed, progress=False)(x).mar for seed in (0, 1))
    assert not torch.equal(one, other)


@every
def test_fitting_many_models_at_once_leaves_each_as_alone(case):
    method, model, (x, y) = made(case)
    outputs = 1 if case.startswith("regressor") else 3
    models = [model, network(outputs, seed=8)]
    together = method.fit_many(models, [(x, y), (x, y)], seeds=[3, 4], progress=False)
    for net, seed, uq in zip(models, (3, 4), together, strict=True):
        assert_same(uq(x), method.fit(net, (x, y), seed=seed, progress=False)(x), rtol=1e-3, atol=1e-4)


# Targets that do not count


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("regressor")])
def test_rows_with_a_nan_target_do_not_count(case):
    method, model, (x, y) = made(case)
    missing = torch.arange(ROWS) % 3 == 1
    holes = torch.where(missing[:, None], torch.nan, y)
    with_holes = method.fit(model, (x, holes), progress=False)
    without = method.fit(model, (x[~missing], y[~missing]), progress=False)
    assert_same(with_holes(x), without(x), **CLOSE)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("classifier")])
@pytest.mark.parametrize("ignored", [-100, 255])
def test_rows_with_an_ignored_label_do_not_count(case, ignored):
    method, model, (x, y) = made(case)
    method = type(method)(**{f.name: getattr(method, f.name) for f in fields(method)} | {"ignore_index": ignored})
    missing = torch.arange(ROWS) % 3 == 1
    with_holes = method.fit(model, (x, torch.where(missing, ignored, y)), progress=False)
    without = method.fit(model, (x[~missing], y[~missing]), progress=False)
    assert_same(with_holes(x), without(x), **CLOSE)


# Forms of data


@every
def test_every_form_of_the_same_data_gives_the_same_predictor(case):
    method, model, (x, y) = made(case)
    expected = method.fit(model, (x, y), progress=False)(x)
    numpy_y = y.double().numpy() if y.is_floating_point() else y.numpy()
    forms = {
        "loader": DataLoader(TensorDataset(x, y), batch_size=41),
        "generator": ((x[i : i + 50], y[i : i + 50]) for i in range(0, ROWS, 50)),
        "dataset": TensorDataset(x, y),
        "numpy": (x.double().numpy(), numpy_y),
        "list": [(x[:30], y[:30]), (x[30:], y[30:])],
        "flat": (x, y.flatten()),
        "column": (x, y.reshape(-1, 1)),
    }
    for name, data in forms.items():
        out = method.fit(model, data, progress=False)(x)
        assert (out.epistemic - expected.epistemic).abs().max() <= 1e-3 * expected.epistemic.abs().max(), name
        assert_same(out, expected, rtol=1e-3, atol=1e-3)


def test_integer_targets_are_numbers_in_regression():
    model = network(1)
    x, _ = regression_data(model)
    y = torch.randint(-5, 5, (ROWS, 1), generator=torch.Generator().manual_seed(0))
    method = sp.SplitPointRegressor(epochs=2, folds=0)
    one, other = (method.fit(model, (x, target), progress=False)(x) for target in (y, y.float()))
    assert_same(one, other, **EXACT)


class TwoInputs(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, first, second):
        return {"loss": first.sum(), "prediction": self.inner(torch.cat([first, second], 1))}


@every
def test_models_of_two_inputs_and_a_dict_of_outputs(case):
    method, model, (x, y) = made(case)
    expected = method.fit(model, (x, y), progress=False)(x)
    method = type(method)(**{f.name: getattr(method, f.name) for f in fields(method)} | {"output_key": "prediction"})
    first, second = x[:, :2], x[:, 2:]
    uq = method.fit(TwoInputs(model), (first, second, y), progress=False)
    assert_same(uq(first, second), expected, **CLOSE)
    assert_same(uq.predict((first, second, y)), expected, **CLOSE)
    assert_same(uq.predict((first, second)), expected, **CLOSE)
    batches = [{"first": first[i : i + 40], "second": second[i : i + 40], "labels": y[i : i + 40]} for i in (0, 40)]
    named = method.fit(TwoInputs(model), batches, progress=False)
    assert_same(named.predict(batches), named(first=first[:80], second=second[:80]), **CLOSE)


class WithLogits:
    def __init__(self, logits):
        self.logits = logits


@every
def test_models_that_return_an_object_with_logits(case):
    method, model, (x, y) = made(case)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return WithLogits(self.inner(x))

    assert_same(method.fit(Wrapped(), (x, y), progress=False)(x), method.fit(model, (x, y), progress=False)(x), **EXACT)


# Precision


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_base_models_of_other_precision(case, dtype):
    method, model, (x, y) = made(case)
    model = copy.deepcopy(model).to(dtype)
    target = y.to(dtype) if y.is_floating_point() else y
    uq = method.fit(model, (x.to(dtype), target), progress=False)
    out = uq(x.to(dtype))
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    with torch.no_grad():
        output = model(x.to(dtype))
    if case.startswith("regressor"):
        assert out.mean.dtype == out.lower.dtype == out.upper.dtype == wanted
        assert torch.equal(out.mean, output.to(wanted))
        assert (out.lower < out.mean).all()
    else:
        assert out.probs.dtype == out.base_probs.dtype == wanted
        torch.testing.assert_close(out.base_probs, output.to(wanted).softmax(1))
    assert all(t.isfinite().all() for t in tensors(out).values())
    fitted_types = {t.dtype for t in uq.heads.parameters()} if case.startswith("regressor") else set()
    assert fitted_types <= {torch.float32}


@every
def test_numpy_inputs_take_the_precision_of_the_model(case):
    method, model, (x, y) = made(case)
    model = copy.deepcopy(model).double()
    uq = method.fit(model, (x.numpy(), y.numpy()), progress=False)
    assert_same(uq.predict(x.numpy().astype(np.float32)), uq(x.double()), **CLOSE)


# Thresholds


@every
def test_a_threshold_flags_the_scores_above_its_quantile(case):
    uq, _, (x, y) = fitted(case)
    assert uq.set_threshold((x, y), quantile=0.9) is uq
    out = uq(x)
    expected = np.quantile(out.epistemic.numpy().ravel(), 0.9)
    np.testing.assert_allclose(float(uq.reference.threshold), expected, rtol=1e-5)
    assert out.flagged.dtype == torch.bool
    assert out.flagged.shape == out.epistemic.shape
    assert torch.equal(out.flagged, out.epistemic > uq.reference.threshold.to(out.epistemic))
    assert 0.08 <= out.flagged.double().mean() <= 0.12
    assert ((out.percentile >= 0) & (out.percentile <= 100)).all()
    broken = uq(torch.full((2, 3), torch.nan))
    assert broken.flagged.all()


@every
def test_a_predictor_names_its_layer_and_why(case):
    uq, model, (x, _) = fitted(case)
    assert uq.layer == sp.layers(model, x).chosen == "2:input"
    assert "2:input" in repr(uq)
    assert "model's output" in repr(uq)
