"""The public contract of every method: what its scores see, and the data it takes."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from problems import (
    CLOSE,
    ROWS,
    assert_same,
    calibrated,
    drawn,
    fit,
    fitted,
    method,
    only,
    over,
    post_hoc,
    problem,
    tensors,
    vector_network,
)
from splitpoint.baselines import METHODS
from splitpoint.metrics import auroc

# Scores


def far(x):
    return 12 + 4 * x


OOD = [
    ("deep_ensemble", "scalar"), ("mc_dropout", "scalar"), ("sqr_oc", "scalar"), ("oc", "scalar"), ("oc", "classes"),
    ("ddu", "classes"), ("laplace", "scalar"), ("laplace", "classes"), ("splitpoint", "scalar"),
    ("splitpoint_calibrated", "scalar"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "own"), OOD, ids=[f"{name}-{own}" for name, own in OOD])
def test_the_epistemic_score_is_larger_far_from_the_data(name, own):
    uq, x = fitted(name, own), drawn(11, 100, 3)
    near, away = (uq(part).epistemic.flatten() for part in (x, far(x)))
    assert auroc(near, away) > 0.85


@over(["scalar", "pair", "maps", "classes", "label_maps"])
def test_methods_without_an_epistemic_part_say_zero(name, own):
    score = fitted(name, own)(problem(own).fresh).epistemic
    if METHODS[name].about.epistemic == "none":
        assert (score == 0).all()
    else:
        assert score.unique().numel() > 1


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
    }


FORMS = [*forms(torch.zeros(2), torch.zeros(2))]


@only(["gaussian", "deep_ensemble", "sqr_oc", "oc", "conformal"])
@pytest.mark.parametrize("form", FORMS)
def test_data_may_come_in_any_form(name, own, form):
    """Rows are the same whatever holds them; only their order in training may differ."""
    given = problem(own)
    data = forms(*given.data)[form]
    uq = fit(name, own, data=data)
    close = {"rtol": 0.5, "atol": 1.5} if not post_hoc(name) and form not in ("pair", "list", "numpy") else CLOSE
    prediction = uq.predict(given.fresh)
    answer = "mean" if given.task == "regression" else "probs"
    expected = fitted(name, own)(given.fresh)
    torch.testing.assert_close(getattr(prediction, answer), getattr(expected, answer), **close)
    assert len(uq.predict(data)) == ROWS


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


@only([name for name in METHODS if name != "splitpoint_calibrated"])
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_models_may_take_names_and_return_an_object(name, own, wrap):
    given = problem(own)
    outputs = given.output.shape[1]

    def named(part):
        return {"features": part[0], "labels": part[1]}

    held = calibrated(name, given)
    uq = method(name, given, epochs=2).fit(
        lambda: Described(outputs, WRAPPERS[wrap]), named(given.data), calibration=held and named(held), progress=False
    )
    prediction = uq(features=given.fresh)
    assert len(prediction) == len(given.fresh)
    assert_same(uq.predict({"features": given.fresh}), prediction, **CLOSE)


@only([name for name in METHODS if name != "splitpoint_calibrated"], ["scalar"])
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


@only([name for name in METHODS if name != "splitpoint_calibrated"], ["classes"])
def test_labels_to_ignore_do_not_count(name, own):
    given = problem(own)
    x, y = given.data
    data = torch.cat([x, torch.full((32, 3), 1000.0)]), torch.cat([y, torch.full((32,), 7)])
    prediction = fit(name, own, data=data, ignore_index=7)(given.fresh)
    assert all(torch.isfinite(value.double()).all() for value in tensors(prediction).values())
    if post_hoc(name):
        assert_same(prediction, fitted(name, own)(given.fresh), **CLOSE)
    else:
        torch.testing.assert_close(prediction.probs, fitted(name, own)(given.fresh).probs, rtol=0, atol=0.5)


def test_missing_numbers_of_one_output_leave_the_others():
    given = problem("pair")
    x, y = given.data
    for name in ("gaussian", "laplace", "conformal", "oc"):
        holes = y.clone()
        holes[::3, 0] = torch.nan
        prediction = fit(name, "pair", data=(x, holes))(given.fresh)
        assert all(torch.isfinite(value).all() for value in tensors(prediction).values())


def test_sequences_of_linear_layers_are_maps_too():
    """Outputs (N, T, D) of linear layers alone, which a stack of networks could mistake for rows."""
    x, y = drawn(1, 48, 6, 3), drawn(2, 48, 6, 1)
    for name in ("deep_ensemble", "sqr_oc", "gaussian", "mc_dropout", "laplace"):
        settings = method(name, problem("scalar"), epochs=2)
        many = settings.fit_many([lambda: vector_network(1)] * 2, [(x, y)] * 2, progress=False)
        assert many[0](x).mean.shape == y.shape
