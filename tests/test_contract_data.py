"""The public contract of the two methods: rows, randomness, and the data they take."""

import copy
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from contract import (
    CASES,
    ROWS,
    drawn,
    every,
    fitted,
    made,
    network,
    regression_data,
)
from problems import CLOSE, EXACT, assert_same, tensors

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
