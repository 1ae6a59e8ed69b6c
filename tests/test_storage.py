"""Saving and loading: the same answers afterwards, and all or nothing on disk."""

import copy
import functools
import json
import os
import stat

import pytest
import torch
from safetensors import safe_open
from torch import nn

import splitpoint as sp
from splitpoint import files
from splitpoint.errors import StorageError
from stored import FAST, Named, Net, assert_same_prediction, classification, labels, regression, saved, task


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# Round trips


class Maps(nn.Module):
    """A fully convolutional model."""

    def __init__(self, outputs):
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, outputs, 1)

    def forward(self, x):
        return self.out(self.conv(x).relu())


def dense_regression():
    data = (torch.randn(6, 2, 5, 5), torch.randn(6, 1, 5, 5))
    return sp.SplitPointRegressor(**FAST).fit(Maps(1), data, progress=False)


def dense_classification():
    data = (torch.randn(6, 2, 5, 5), torch.randint(3, (6, 5, 5)))
    return sp.SplitPointClassifier(epochs=2).fit(Maps(3), data, progress=False)


def biased_classification():
    """A base model so wrong that the network of class frequencies is kept beside the support."""
    model = Net(2)
    with torch.no_grad():
        model.fc.weight.mul_(0.01)
    x, y = labels(600, 2)
    return sp.SplitPointClassifier(epochs=60, learning_rate=1e-2).fit(model, (x, y), progress=False)


PREDICTORS = {
    "split": lambda: regression(interval="split"),
    "consistent": lambda: regression(interval="consistent"),
    "consistent, unbounded": lambda: regression(interval="consistent", factor_limit=None),
    "conformal": lambda: regression(interval="conformal", calibrated=True),
    "auto, calibrated": lambda: regression(calibrated=True, outputs=2),
    "cross-fitted": lambda: regression(folds=3),
    "levels": lambda: regression(confidence_level=(0.9, 0.5, 0.7)),
    "levels as a list, conformal": lambda: regression(confidence_level=[0.5, 0.8], calibrated=True),
    "training residuals without leverage": lambda: regression(residuals="train", leverage=False),
    "paper": lambda: sp.SplitPointRegressor.paper(epochs=2).fit(Net(), task(), progress=False),
    "several outputs": lambda: regression(outputs=2),
    "float64": lambda: sp.SplitPointRegressor(**FAST).fit(
        Net().double(), tuple(part.double() for part in task()), progress=False
    ),
    "named layer": lambda: regression(layer="hidden"),
    "several layers": lambda: regression(layer=["hidden", "fc:input", "hidden:input"]),
    "output key": lambda: regression(Named(), output_key="depth"),
    "maps": dense_regression,
    "simplex": classification,
    "simplex with its network": biased_classification,
    "simplex, calibrated": lambda: classification(calibrated=True),
    "free": lambda: classification(mars="free"),
    "free, calibrated": lambda: classification(mars="free", calibrated=True, delta0=0.5),
    "free, chosen gate": lambda: classification(mars="free", calibrated=True, delta0="cv"),
    "free, open gate": lambda: classification(mars="free", calibrated=True, delta0=float("inf")),
    "paper, classification": lambda: sp.SplitPointClassifier.paper(epochs=2).fit(Net(3), labels(), progress=False),
    "one logit": lambda: classification(Net(1), classes=2),
    "class maps": dense_classification,
}
every_predictor = pytest.mark.parametrize("name", PREDICTORS)


@functools.cache
def fitted_once(name):
    torch.manual_seed(0)
    return PREDICTORS[name]()


def fitted(name):
    """A predictor of its own for every test, fitted once."""
    return copy.deepcopy(fitted_once(name))


def inputs_for(uq):
    x = torch.randn(7, 2, 5, 5) if isinstance(uq.base, Maps) else torch.randn(7, 3)
    return x.to(next(uq.base.parameters()).dtype)


@every_predictor
def test_a_loaded_predictor_gives_the_same_answers(name, tmp_path):
    uq = fitted(name)
    again = sp.load(saved(uq, tmp_path), uq.base)
    x = inputs_for(uq)
    assert type(again) is type(uq)
    assert_same_prediction(uq(x), again(x))
    assert (again.layer, again.tap.reason, again.layout, again.inputs) == (
        uq.layer,
        uq.tap.reason,
        uq.layout,
        uq.inputs,
    )
    a, b = uq.own_tensors(), again.own_tensors()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


@every_predictor
def test_thresholds_are_kept(name, tmp_path):
    uq = fitted(name)
    x = inputs_for(uq)
    uq.set_threshold(x, quantile=0.6)
    again = sp.load(saved(uq, tmp_path), uq.base)
    assert_same_prediction(uq(2 * x), again(2 * x))
    assert again(2 * x).flagged.any()


def test_the_predictors_above_cover_every_part():
    parts = {key.split(".")[0] for name in PREDICTORS for key in fitted(name).own_tensors()}
    expected = {"heads", "scale", "shape", "factors", "support", "network", "calibrator", "correction"}
    expected |= {"joint", "set_scores", "mix"}
    assert parts == expected


def contents(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["splitpoint"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_saving_a_loaded_predictor_again_gives_the_same_contents(tmp_path):
    uq = regression(calibrated=True)
    first = saved(uq, tmp_path)
    sp.load(first, uq.base).save(tmp_path / "again")
    (description, tensors), (again, others) = contents(first), contents(tmp_path / "again")
    assert description == again
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_settings_are_kept_but_for_the_layer(tmp_path):
    uq = regression(confidence_level=(0.5, 0.8), layer="hidden", learning_rate=0.01, factor_limit=None)
    again = sp.load(saved(uq, tmp_path), uq.base)
    assert again.method.levels == (0.5, 0.8)
    assert (again.method.learning_rate, again.method.factor_limit, again.method.epochs) == (0.01, None, 2)
    assert again.tap.names == ("hidden",)


def test_the_chosen_gate_is_kept(tmp_path):
    uq = classification(mars="free", calibrated=True, delta0="cv")
    assert isinstance(uq.method.delta0, float)
    assert sp.load(saved(uq, tmp_path), uq.base).method.delta0 == uq.method.delta0


def test_a_loaded_predictor_reads_streams_and_stays_in_eval_mode(tmp_path):
    uq = regression()
    again = sp.load(str(saved(uq, tmp_path)), uq.base)
    data = task(20, seed=3)
    assert_same_prediction(uq.predict(data), again.predict(data))
    assert not again.training
    assert not again.train().training


def test_a_predictor_of_a_recorded_method_is_loaded(tmp_path):
    model = Net()
    uq = regression(model, layer=model.encode)
    again = sp.load(saved(uq, tmp_path), model)
    x = torch.randn(5, 3)
    assert_same_prediction(uq(x), again(x))


def test_the_base_model_is_not_in_the_file_and_is_left_alone(tmp_path):
    uq = regression()
    path = saved(uq, tmp_path)
    with safe_open(path, framework="pt") as file:
        assert not any(name.startswith("base.") for name in file.keys())  # noqa: SIM118
    before = {name: value.clone() for name, value in uq.base.state_dict().items()}
    uq.base.train()
    sp.load(path, uq.base)
    assert all(module.training for module in uq.base.modules())
    assert all(torch.equal(value, before[name]) for name, value in uq.base.state_dict().items())


def test_an_equal_model_in_another_object_fits(tmp_path):
    uq = regression()
    twin = copy.deepcopy(uq.base)
    again = sp.load(saved(uq, tmp_path), twin)
    assert again.base is twin
    x = torch.randn(5, 3)
    assert_same_prediction(uq(x), again(x))


def test_the_heads_go_where_they_are_told(tmp_path):
    uq = regression()
    path = saved(uq, tmp_path)
    for place in ("cpu", torch.device("cpu"), None):
        again = sp.load(path, uq.base, map_location=place)
        assert {tensor.device.type for tensor in again.own_tensors().values()} == {"cpu"}
    away = sp.load(path, uq.base, map_location="meta")
    assert {tensor.device.type for tensor in away.own_tensors().values()} == {"meta"}
    assert next(uq.base.parameters()).device.type == "cpu"


def test_the_heads_go_to_the_device_of_the_model(tmp_path):
    uq = regression()
    path = saved(uq, tmp_path)
    again = sp.load(path, Net().to("meta"), strict=False)
    assert {tensor.device.type for tensor in again.own_tensors().values()} == {"meta"}


# All or nothing


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(step, error, tmp_path, monkeypatch):
    uq = regression()
    path = saved(uq, tmp_path)
    before = path.read_bytes()

    def fail(target, *_):
        if step == "write_bytes":
            with open(target, "wb") as file:
                file.write(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(files.Path if step == "write_bytes" else os, step, fail)
        with pytest.raises((StorageError, KeyboardInterrupt)):
            regression(outputs=2).save(path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert_same_prediction(sp.load(path, uq.base)(torch.ones(2, 3)), uq(torch.ones(2, 3)))


def test_a_save_that_fails_for_the_first_time_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.Path, "write_bytes", fail)
    with pytest.raises(
        StorageError, match=r"Expected to write .*, but that failed \(disk full\); what was there before"
    ):
        regression().save(tmp_path / "uq.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_new_save_replaces_the_old_file(tmp_path):
    old, new = regression(), regression(confidence_level=0.5)
    saved(old, tmp_path)
    path = saved(new, tmp_path)
    assert sp.load(path, new.base).method.levels == (0.5,)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_fit_found_out_is_in_the_file(tmp_path):
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    model = nn.Linear(3, 1)
    uq = sp.SplitPointRegressor(0.9, epochs=1, residuals="loo").fit(model, (x, y), progress=False)
    uq.save(tmp_path / "uq.safetensors")
    found = sp.load(tmp_path / "uq.safetensors", model).checks
    assert [str(check) for check in found] == [str(check) for check in uq.checks] != []


def test_a_saved_file_can_be_read_by_whoever_can_read_the_users_other_files(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.write_bytes(b"")
    path = saved(regression(), tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"Expected a folder to save to, but .*nowhere does not exist; create it"):
        regression().save(tmp_path / "nowhere" / "uq.safetensors")
    assert list(tmp_path.iterdir()) == []
