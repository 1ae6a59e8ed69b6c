"""The public contract of every method: trained models and factories, and files."""

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
    calibrated,
    classes,
    differ,
    each,
    fails,
    fit,
    fitted,
    map_network,
    method,
    numbers,
    only,
    over,
    post_hoc,
    problem,
    vectors,
)
from splitpoint.baselines import METHODS, train_network
from splitpoint.errors import SettingsError, StorageError

# Models and factories


@only(POST_HOC)
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_post_hoc_methods_leave_the_model_as_it_was(name, own, mode):
    inner = copy.deepcopy(base(own)).requires_grad_(True)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), *inner).train(mode)
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    uq = fit(name, own, model=model)
    assert_same(uq(problem(own).fresh), uq(problem(own).fresh), **EXACT)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


@only([name for name in POST_HOC if name not in ("splitpoint", "splitpoint_calibrated")])
def test_a_post_hoc_method_trains_a_network_from_a_factory(name, own):
    given = problem(own)
    uq = fit(name, own, model=given.factory)
    trained = train_network(
        given.factory, given.data, epochs=given.epochs, batch_size=32, learning_rate=1e-2, progress=False
    )
    assert_same(uq(given.fresh), fit(name, own, model=trained)(given.fresh), **EXACT)


@only(["splitpoint"])
def test_splitpoint_trains_a_network_from_a_factory(name, own):
    assert_same(
        fit(name, own, model=problem(own).factory)(problem(own).fresh), fitted(name, own)(problem(own).fresh), **EXACT
    )


@only(TRAINED)
@pytest.mark.parametrize("grad", [True, False], ids=["free", "frozen"])
def test_a_method_that_trains_takes_a_model_as_a_pattern(name, own, grad):
    """Fresh copies are trained as a whole, whatever state the pattern is in, and the pattern keeps that state."""
    given = problem(own)
    pattern = copy.deepcopy(base(own)).requires_grad_(grad)
    state = copy.deepcopy(pattern.state_dict())
    uq = fit(name, own, model=pattern)
    assert_same(uq(given.fresh), fitted(name, own)(given.fresh), **CLOSE)
    assert all(torch.equal(value, state[key]) for key, value in pattern.state_dict().items())
    assert all(p.requires_grad is grad and p.grad is None for p in pattern.parameters())
    assert not pattern.training


@only([name for name in TRAINED if name not in ("mc_dropout", "sqr_oc", "deep_ensemble")])
def test_networks_trained_as_a_stack_learn_what_they_would_alone(name, own):
    given = problem(own)
    target = {"scalar": lambda x, seed: numbers(x, seed)[:, :1], "classes": lambda x, _: classes(x)}[own]
    sets = [given.data, vectors(7, target)]
    settings = method(name, given, epochs=3)
    together = settings.fit_many([given.factory] * 2, sets, seeds=[5, 3], progress=False)
    for seed, uq, data in zip([5, 3], together, sets, strict=True):
        alone = settings.fit(given.factory, data, seed=seed, progress=False)
        assert_same(uq(given.fresh), alone(given.fresh), rtol=1e-3, atol=1e-4)


@only([name for name in METHODS if not name.startswith("splitpoint")])  # those stack heads, not networks
def test_fit_many_gives_a_predictor_for_each_data_set(name, own):
    given = problem(own)
    held = calibrated(name, given)
    many = method(name, given, epochs=1).fit_many(
        [given.factory] * 2, [given.data, given.calibration], calibration=held and [held] * 2, progress=False
    )
    assert len(many) == 2
    assert differ(many[0](given.fresh), many[1](given.fresh))


def test_fit_many_takes_models_and_factories_together():
    given = problem("classes")
    mixed = [base("classes"), given.factory]
    many = method("softmax", given).fit_many(mixed, [given.data] * 2, seeds=[0, 0], progress=False)
    assert_same(many[0](given.fresh), many[1](given.fresh), **CLOSE)
    with fails(SettingsError, "Expected either trained models or functions"):
        method("splitpoint", given).fit_many(mixed, [given.data] * 2, progress=False)


def test_fit_many_wants_lists_of_one_length():
    given = problem("classes")
    with fails(SettingsError, "Expected as many models, data sets"):
        METHODS["softmax"]().fit_many([given.factory], [given.data] * 2, progress=False)


# Files


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
    uq = fit(name, own, model=problem(own).factory)
    uq.save(tmp_path / "uq.safetensors")
    assert_same(
        sp.load(tmp_path / "uq.safetensors", problem(own).factory)(problem(own).fresh), uq(problem(own).fresh), **EXACT
    )


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
