"""The public contract of every method: what was fitted comes back from a file, for the model it belongs to."""

import copy

import pytest
import torch
from torch import nn

import splitpoint as sp
from problems import (
    CLOSE,
    EXACT,
    POST_HOC,
    TRAINED,
    Squeezed,
    assert_same,
    base,
    each,
    fails,
    fit,
    fitted,
    map_network,
    method,
    only,
    over,
    post_hoc,
    problem,
)
from splitpoint.baselines import NetworkTraining
from splitpoint.errors import StorageError


@each
def test_a_saved_predictor_predicts_the_same(name, own, tmp_path):
    uq, given = fitted(name, own), problem(own)
    uq.save(tmp_path / "uq.safetensors")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for start in [base(own)] if post_hoc(name) else [given.factory, given.factory(), base(own)]:
        torch.set_rng_state(before)
        again = sp.load(tmp_path / "uq.safetensors", start)
        assert torch.equal(torch.get_rng_state(), before)
        assert type(again) is type(uq)
        assert_same(again(given.fresh), uq(given.fresh), **EXACT)
        assert not any(module.training for module in again.modules())


@over(["maps", "label_maps", "squeezed"])
def test_every_shape_survives_a_file(name, own, tmp_path):
    uq, given = fitted(name, own), problem(own)
    uq.save(tmp_path / "uq.safetensors")
    again = sp.load(tmp_path / "uq.safetensors", base(own) if post_hoc(name) else given.factory)
    assert_same(again(given.fresh), uq(given.fresh), **CLOSE)


@only(POST_HOC)
def test_a_file_of_a_method_that_trained_its_model_holds_the_model(name, own, tmp_path):
    uq = fit(name, own, model=problem(own).factory, training=NetworkTraining(epochs=2))
    uq.save(tmp_path / "uq.safetensors")
    again = sp.load(tmp_path / "uq.safetensors", problem(own).factory)
    assert_same(again(problem(own).fresh), uq(problem(own).fresh), **EXACT)


def test_a_threshold_and_a_temperature_survive_a_file(tmp_path):
    given = problem("classes")
    for name in ("ddu", "deep_ensemble"):
        start = base("classes") if post_hoc(name) else given.factory
        uq = method(name, given, temperature="nll").fit(
            start, given.data, calibration=given.calibration, progress=False
        )
        uq.set_threshold(given.data[0])
        uq.save(tmp_path / "uq.safetensors")
        again = sp.load(tmp_path / "uq.safetensors", start)
        assert_same(again(given.fresh), uq(given.fresh), **EXACT)
        assert torch.equal(again(given.fresh).flagged, uq(given.fresh).flagged)


WRONG = {
    "wider": lambda: nn.Sequential(nn.Linear(3, 17), nn.ReLU(), nn.Linear(17, 16), nn.ReLU(), nn.Linear(16, 1)),
    "shallower": lambda: nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)),
    "named": lambda: Squeezed(),
    "activation": lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1), nn.ReLU()),
    "convolution": lambda: map_network(1),
}


@only(TRAINED)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_network_of_another_architecture_does_not_fit_a_file(name, own, wrong, tmp_path):
    fitted(name, own).save(tmp_path / "uq.safetensors")
    with fails(StorageError, "^Expected a network of the architecture that [^\n]*$"):
        sp.load(tmp_path / "uq.safetensors", WRONG[wrong])


@only(POST_HOC)
def test_a_post_hoc_file_belongs_to_its_model(name, own, tmp_path):
    fitted(name, own).save(tmp_path / "uq.safetensors")
    other = copy.deepcopy(base(own))
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    with fails(StorageError, "Expected the base model that [^\n]* was fitted on, but the weights differ"):
        sp.load(tmp_path / "uq.safetensors", other)
    with fails(StorageError, "Expected the trained base model, but got function"):
        sp.load(tmp_path / "uq.safetensors", problem(own).factory)
