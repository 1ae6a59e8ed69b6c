"""The public contract of every method: the data and the models that it takes, whatever form they come in."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from problems import (
    CLOSE,
    EXACT,
    METHODS,
    POST_HOC,
    ROWS,
    TRAINED,
    assert_same,
    base,
    calibrated,
    drawn,
    each,
    fit,
    fitted,
    method,
    only,
    post_hoc,
    problem,
    tensors,
    vector_network,
)

# Forms of data


def forms(x, y):
    return {
        "pair": (x, y),
        "list": [x, y],
        "numpy": (x.numpy(), y.numpy()),
        "float64": (x.double().numpy(), y.double().numpy() if y.is_floating_point() else y.numpy()),
        "loader": DataLoader(TensorDataset(x, y), batch_size=32),
        "dataset": TensorDataset(x, y),
        "batches": [(x[i : i + 32], y[i : i + 32]) for i in range(0, len(x), 32)],
        "mapping": {"input": x, "labels": y},
        "mappings": [{"input": x[i : i + 32], "labels": y[i : i + 32]} for i in range(0, len(x), 32)],
        "flat": (x, y.flatten()),
        "column": (x, y.reshape(-1, 1)),
    }


FORMS = [*forms(torch.zeros(2), torch.zeros(2))]


@only([*POST_HOC, "gaussian", "deep_ensemble", "sqr_oc"])
@pytest.mark.parametrize("form", FORMS)
def test_data_may_come_in_any_form(name, own, form):
    """Rows are the same whatever holds them; only their order in the training of networks may differ."""
    given = problem(own)
    data = forms(*given.data)[form]
    uq = fit(name, own, data=data)
    found, expected = uq.predict(given.fresh), fitted(name, own)(given.fresh)
    if post_hoc(name):
        assert_same(found, expected, rtol=1e-3, atol=1e-3)
    else:
        answer = "mean" if given.task == "regression" else "probs"
        close = CLOSE if form in ("pair", "list", "numpy", "flat", "column") else {"rtol": 0.5, "atol": 1.5}
        torch.testing.assert_close(getattr(found, answer), getattr(expected, answer), **close)
    assert len(uq.predict(data)) == ROWS


def test_sequences_of_linear_layers_are_maps_too():
    """Outputs (N, T, D) of linear layers alone, which a stack of networks could mistake for rows."""
    x, y = drawn(1, 48, 6, 3), drawn(2, 48, 6, 1)
    for name in ("deep_ensemble", "sqr_oc", "gaussian", "mc_dropout", "laplace"):
        changes = {} if post_hoc(name) else {"epochs": 2}
        start = vector_network(1) if post_hoc(name) else lambda: vector_network(1)
        many = method(name, problem("scalar"), **changes).fit_many([start] * 2, [(x, y)] * 2, progress=False)
        assert many[0](x).mean.shape == y.shape


def test_integer_targets_are_numbers_where_the_task_says_so():
    x, _ = problem("scalar").data
    y = torch.randint(-5, 5, (ROWS, 1), generator=torch.Generator().manual_seed(0))
    for name in ("splitpoint", "laplace", "oc"):
        one, other = (fit(name, "scalar", data=(x, target)) for target in (y, y.float()))
        assert_same(one(x), other(x), **EXACT)


# Names and objects


class Described(nn.Module):
    """A model in the style of transformers: named arguments in, an object with .logits out."""

    def __init__(self, outputs, wrap):
        super().__init__()
        self.body, self.wrap = vector_network(outputs), wrap

    def forward(self, features=None, labels=None):
        return self.wrap(self.body(features))


WRAPPERS = {
    "object": lambda value: SimpleNamespace(logits=value),
    "mapping": lambda value: {"logits": value},
    "tuple": lambda value: (value,),
}


@each
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_models_may_take_names_and_return_an_object(name, own, wrap):
    given = problem(own)
    outputs, held = given.output.shape[1], calibrated(name, given)

    def named(part):
        return {"features": part[0], "labels": part[1]}

    start = lambda: Described(outputs, WRAPPERS[wrap])  # noqa: E731
    changes = {} if post_hoc(name) else {"epochs": 2}
    uq = method(name, given, **changes).fit(
        start() if post_hoc(name) else start, named(given.data), calibration=held and named(held), progress=False
    )
    prediction = uq(features=given.fresh)
    assert len(prediction) == len(given.fresh)
    assert_same(uq.predict({"features": given.fresh}), prediction, **CLOSE)


class TwoInputs(nn.Module):
    """A model of two arguments, one of which may be a keyword, whose output is one of several."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, first, second):
        return {"loss": first.sum(), "prediction": self.inner(torch.cat([first, second], 1))}


@only(POST_HOC)
def test_models_of_two_inputs_and_several_outputs(name, own):
    given = problem(own)

    def split(x):
        return x[:, :2], x[:, 2:]

    def named(x, y):
        return dict(zip(("first", "second"), split(x), strict=True)) | {"labels": y}

    expected, x = fitted(name, own)(given.fresh), given.fresh
    settings, held = method(name, given, output_key="prediction"), calibrated(name, given)
    for form in (lambda x, y: (*split(x), y), named):
        uq = settings.fit(TwoInputs(base(own)), form(*given.data), calibration=held and form(*held), progress=False)
        assert_same(uq(*split(x)), expected, **CLOSE)
        assert_same(uq(split(x)[0], second=split(x)[1]), expected, **CLOSE)
        assert_same(uq.predict(form(x, torch.zeros(len(x)))), expected, **CLOSE)
    uq = settings.fit(
        TwoInputs(base(own)), (*split(given.data[0]), given.data[1]), calibration=held and (*split(held[0]), held[1]),
        progress=False,
    )  # fmt: skip
    assert_same(uq.predict(split(x)), expected, **CLOSE)


# Targets that do not count


@only(METHODS, ["scalar"])
def test_targets_that_are_missing_do_not_count(name, own):
    """A row with a NaN target changes nothing but the number of rows in a step."""
    given = problem(own)
    x, y = given.data
    extra = 1000 * torch.ones(32, 3)
    data = torch.cat([x, extra]), torch.cat([y, torch.full((32, 1), torch.nan)])
    prediction = fit(name, own, data=data)(given.fresh)
    assert all(torch.isfinite(value).all() for value in tensors(prediction).values())
    if post_hoc(name):
        assert_same(prediction, fitted(name, own)(given.fresh), **CLOSE)
    else:
        torch.testing.assert_close(prediction.mean, fitted(name, own)(given.fresh).mean, rtol=0.5, atol=1.0)


@only(METHODS, ["classes"])
@pytest.mark.parametrize("ignored", [-100, 255])
def test_labels_to_ignore_do_not_count(name, own, ignored):
    given = problem(own)
    x, y = given.data
    data = torch.cat([x, torch.full((32, 3), 1000.0)]), torch.cat([y, torch.full((32,), ignored)])
    prediction = fit(name, own, data=data, ignore_index=ignored)(given.fresh)
    assert all(torch.isfinite(value.double()).all() for value in tensors(prediction).values())
    if post_hoc(name):
        assert_same(prediction, fitted(name, own)(given.fresh), **CLOSE)
    else:
        torch.testing.assert_close(prediction.probs, fitted(name, own)(given.fresh).probs, rtol=0, atol=0.5)


def test_missing_numbers_of_one_output_leave_the_others():
    given = problem("pair")
    x, y = given.data
    for name in ("gaussian", "laplace", "conformal", "oc", "splitpoint"):
        holes = y.clone()
        holes[::3, 0] = torch.nan
        prediction = fit(name, "pair", data=(x, holes))(given.fresh)
        assert all(torch.isfinite(value).all() for value in tensors(prediction).values())


# Precision


def in_type(part, dtype):
    return tuple(value.to(dtype) if value.is_floating_point() else value for value in part)


@only(POST_HOC)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_models_of_other_precision(name, own, dtype):
    given, held = problem(own), calibrated(name, problem(own))
    model = copy.deepcopy(base(own)).to(dtype)
    uq = method(name, given).fit(
        model, in_type(given.data, dtype), calibration=held and in_type(held, dtype), progress=False
    )
    x = given.fresh.to(dtype)
    prediction = uq(x)
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    with torch.no_grad():
        output = model(x)
    if given.task == "regression":
        assert prediction.mean.dtype == prediction.lower.dtype == prediction.upper.dtype == wanted
        assert torch.equal(prediction.mean, output.to(wanted))
        assert (prediction.lower < prediction.mean).all()
    else:
        assert prediction.probs.dtype == prediction.base_probs.dtype == wanted
        torch.testing.assert_close(prediction.base_probs, output.to(wanted).softmax(1))
    assert all(value.isfinite().all() for value in tensors(prediction).values())
    heads = getattr(uq, "heads", None)
    assert heads is None or {value.dtype for value in heads.parameters()} <= {torch.float32}


@only(TRAINED)
def test_networks_of_double_precision(name, own):
    given = problem(own)
    data = in_type(given.data, torch.float64)
    uq = fit(name, own, model=lambda: given.factory().double(), data=data, epochs=2)
    assert all(value.isfinite().all() for value in tensors(uq(given.fresh.double())).values())


@only(POST_HOC)
def test_numpy_inputs_take_the_precision_of_the_model(name, own):
    given, held = problem(own), calibrated(name, problem(own))
    arrays = [part and tuple(value.numpy() for value in part) for part in (given.data, held)]
    uq = method(name, given).fit(copy.deepcopy(base(own)).double(), arrays[0], calibration=arrays[1], progress=False)
    assert_same(uq.predict(given.fresh.numpy().astype(np.float32)), uq(given.fresh.double()), **CLOSE)
