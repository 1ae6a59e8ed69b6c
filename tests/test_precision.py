"""A predictor in another precision: the base model changes as asked, and what was fitted stays in float32."""

import copy

import pytest
import torch

import splitpoint as sp
from problems import TRAINED, each, fitted, only, problem, tensors
from stored import Net, classification, labels, regression, saved

CONVERSIONS = {
    "half": (lambda uq: uq.half(), torch.float16, 0.02),
    "bfloat16": (lambda uq: uq.bfloat16(), torch.bfloat16, 0.1),
    "double": (lambda uq: uq.double(), torch.float64, 1e-4),
    "to": (lambda uq: uq.to(torch.bfloat16), torch.bfloat16, 0.1),
    "to with a device": (lambda uq: uq.to("cpu", torch.float64), torch.float64, 1e-4),
}
converted = pytest.mark.parametrize("how", CONVERSIONS)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def close(found, expected, share):
    """Means, probabilities and intervals, relative to the largest number of a field."""
    for name, value in tensors(expected).items():
        if name in ("mean", "lower", "upper", "probs", "base_probs"):
            assert float((tensors(found)[name] - value).abs().max()) <= share * float(value.abs().max()), name


@converted
@each
def test_every_predictor_takes_another_precision(name, own, how):
    convert, dtype, share = CONVERSIONS[how]
    uq = copy.deepcopy(fitted(name, own))
    x = problem(own).fresh
    before, fitted_types = uq(x), {key: value.dtype for key, value in heads(uq).items()}
    assert convert(uq) is uq
    assert {parameter.dtype for parameter in uq.base.parameters()} == {dtype}
    assert {key: value.dtype for key, value in heads(uq).items()} == fitted_types
    found = uq(x.to(dtype))
    assert all(value.isfinite().all() or not tensors(before)[key].isfinite().all() for key, value in floats(found))
    close(found, before, share)
    assert uq.verify().verdict == "ok"


def heads(uq):
    return {key: value for key, value in uq.state_dict().items() if not key.startswith("base.")}


def floats(prediction):
    return [(name, value) for name, value in tensors(prediction).items() if value.is_floating_point()]


@converted
def test_a_converted_predictor_survives_a_file_and_fits_the_model_in_either_precision(how, tmp_path):
    convert, dtype, _ = CONVERSIONS[how]
    uq = regression()
    model = copy.deepcopy(uq.base)
    path = saved(convert(uq), tmp_path)
    for base in (model, uq.base):
        again = sp.load(path, base)
        assert again.verify().verdict == "ok"
        x = torch.randn(5, 3).to(next(base.parameters()).dtype)
        torch.testing.assert_close(again(x).mean, base(x).detach(), check_dtype=False)
    assert torch.equal(sp.load(path, uq.base)(x.to(dtype)).lower, uq(x.to(dtype)).lower)


@only(TRAINED)
def test_networks_come_back_from_a_file_in_the_precision_they_were_saved_in(name, own, tmp_path):
    uq = copy.deepcopy(fitted(name, own)).bfloat16()
    again = sp.load(saved(uq, tmp_path), problem(own).factory)
    assert {parameter.dtype for parameter in again.base.parameters()} == {torch.bfloat16}
    x = problem(own).fresh.bfloat16()
    for key, value in tensors(uq(x)).items():
        assert torch.equal(tensors(again(x))[key], value), key


def test_a_predictor_is_fitted_on_a_model_in_bfloat16_from_end_to_end(tmp_path):
    model = Net(3).bfloat16()
    x, y = labels(200)
    uq = sp.SplitPointClassifier(epochs=2).fit(model, (x.bfloat16(), y), progress=False)
    uq.set_threshold(x.bfloat16())
    assert {value.dtype for value in heads(uq).values()} >= {torch.float32}
    assert torch.bfloat16 not in {value.dtype for value in heads(uq).values()}
    again = sp.load(saved(uq, tmp_path), model)
    assert torch.equal(again(x.bfloat16()).probs, uq(x.bfloat16()).probs)
    assert sp.load(saved(uq, tmp_path), model.float())(x).probs.isfinite().all()


def test_an_agreement_takes_another_precision():
    model = Net(3, width=3)
    method = sp.Agreement(branches={"first": "hidden", "last": "fc"})
    uq = method.fit(model, labels(90), progress=False)
    x = torch.randn(6, 3)
    before = uq(x)
    uq.double()
    assert {value.dtype for key, value in heads(uq).items() if key.startswith("weight")} <= {torch.float32}
    torch.testing.assert_close(uq(x.double()).conflict.float(), before.conflict, rtol=1e-3, atol=1e-3)


def test_moving_alone_changes_no_precision():
    uq = classification()
    types = {key: value.dtype for key, value in uq.state_dict().items()}
    assert {key: value.dtype for key, value in uq.to("cpu").state_dict().items()} == types
    assert uq.float() is uq
