"""The public contract of every method: what `fit` does to a model, from a factory, with a seed, at once, from rows."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from problems import (
    CLOSE,
    EXACT,
    METHODS,
    POST_HOC,
    TRAINED,
    assert_same,
    base,
    calibrated,
    classes,
    differ,
    each,
    every,
    fails,
    fit,
    fitted,
    method,
    numbers,
    only,
    post_hoc,
    problem,
    vectors,
)
from splitpoint.baselines import NetworkTraining, train_network
from splitpoint.errors import SettingsError
from splitpoint.recording import Recording

QUICK = NetworkTraining(epochs=2, batch_size=32, learning_rate=1e-2)


def quick(name):
    """Settings of a short fit, of the networks that are trained."""
    return {"training": QUICK} if post_hoc(name) else {"epochs": 2}


# The model


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


@only(POST_HOC)
def test_a_post_hoc_method_trains_a_network_from_a_factory(name, own):
    given = problem(own)
    uq = fit(name, own, model=given.factory, training=QUICK)
    trained = train_network(given.factory, given.data, epochs=2, batch_size=32, learning_rate=1e-2, progress=False)
    assert_same(uq(given.fresh), fit(name, own, model=trained)(given.fresh), **EXACT)


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


# Seeds


@each
def test_the_seed_decides_everything(name, own):
    start = problem(own).factory if not post_hoc(name) else None
    settings = {} if post_hoc(name) else {"epochs": 2}
    torch.manual_seed(999)
    one = fit(name, own, model=start, seed=4, **settings)
    torch.manual_seed(1)
    other = fit(name, own, model=start, seed=4, **settings)
    assert_same(one(problem(own).fresh), other(problem(own).fresh), **EXACT)
    assert all(torch.equal(value, other.own_tensors()[key]) for key, value in one.own_tensors().items())


@each
def test_another_seed_trains_another_network(name, own):
    one, other = (fit(name, own, model=problem(own).factory, seed=seed, **quick(name)) for seed in (0, 1))
    assert differ(one(problem(own).fresh), other(problem(own).fresh))


@only([name for name in METHODS if name.startswith("splitpoint")], ["scalar"])
def test_another_seed_gives_other_heads(name, own):
    one, other = (fit(name, own, seed=seed)(problem(own).fresh).mar for seed in (0, 1))
    assert not torch.equal(one, other)


@every
def test_the_global_random_state_stays_as_it_was(name, own):
    base(own), problem(own)
    torch.manual_seed(17)
    before = torch.get_rng_state()
    uq = fit(name, own, **({} if post_hoc(name) else {"epochs": 1}))
    assert torch.equal(torch.get_rng_state(), before)
    uq.predict(problem(own).fresh)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@each
def test_fit_trains_where_gradients_are_off(name, own, context):
    given = problem(own)
    with context():
        uq = fit(name, own, model=given.factory, **quick(name))
    plain = fit(name, own, model=given.factory, **quick(name))
    assert_same(uq(given.fresh), plain(given.fresh), **EXACT)


# Several at once

STACKED = [name for name in METHODS if name not in ("mc_dropout", "sqr_oc", "deep_ensemble")]
"""Methods whose networks draw no random numbers that all of a stack share."""


@only(STACKED)
def test_fitting_several_at_once_leaves_each_as_alone(name, own):
    given = problem(own)
    target = {"scalar": lambda x, seed: numbers(x, seed)[:, :1], "classes": lambda x, _: classes(x)}[own]
    sets, held = [given.data, vectors(7, target)], calibrated(name, given)
    settings = method(name, given, **({} if post_hoc(name) else {"epochs": 3}))
    starts = [given.factory] * 2
    if post_hoc(name):
        more = {"epochs": 2, "batch_size": 32, "learning_rate": 1e-2, "progress": False}
        starts = [base(own), train_network(given.factory, sets[1], seed=8, **more)]
    together = settings.fit_many(starts, sets, calibration=held and [held] * 2, seeds=[5, 3], progress=False)
    for start, seed, uq, data in zip(starts, [5, 3], together, sets, strict=True):
        alone = settings.fit(start, data, calibration=held, seed=seed, progress=False)
        assert_same(uq(given.fresh), alone(given.fresh), rtol=1e-3, atol=1e-4)


@each
def test_fit_many_gives_a_predictor_for_each_data_set(name, own):
    given = problem(own)
    held = calibrated(name, given)
    many = method(name, given, **quick(name)).fit_many(
        [given.factory] * 2, [given.data, given.calibration], calibration=held and [held] * 2, progress=False
    )
    assert len(many) == 2
    assert differ(many[0](given.fresh), many[1](given.fresh))


@only(POST_HOC, ["classes"])
def test_models_and_factories_are_not_mixed(name, own):
    given = problem(own)
    held = calibrated(name, given)
    with fails(SettingsError, "Expected either trained models or functions"):
        method(name, given).fit_many(
            [base(own), given.factory], [given.data] * 2, calibration=held and [held] * 2, progress=False
        )


@each
def test_fit_many_wants_lists_of_one_length(name, own):
    given = problem(own)
    with fails(SettingsError, "Expected as many models, data sets"):
        method(name, given).fit_many([given.factory], [given.data] * 2, progress=False)


# Recorded rows


@only(POST_HOC, ["scalar", "pair", "maps", "classes", "label_maps"])
def test_recorded_rows_give_the_same_predictor(name, own):
    """But for copies of a network that memorised its rows: they are trained on the data, which rows are not."""
    given, held = problem(own), calibrated(name, problem(own))
    ours = given.task == "regression" and name in ("splitpoint", "splitpoint_layers")
    settings = method(name, given, **({"residuals": "loo"} if ours else {}))
    rows = settings.record(base(own), given.data, progress=False)
    held_out = held and settings.record(base(own), held, progress=False)
    uq = settings.fit_rows(rows, calibration=held_out, progress=False)
    expected = settings.fit(base(own), given.data, calibration=held, progress=False)
    assert_same(uq(given.fresh), expected(given.fresh), **EXACT)


@only([name for name in POST_HOC if name not in ("laplace", "splitpoint_layers")])
def test_features_on_disk_give_the_same_predictions_without_a_model(name, own):
    given, model = problem(own), base(own)

    def rows_of(x, y):
        with torch.no_grad():
            return Recording.of(fitted(name, own).task, model[:-1](x), model(x), y)

    held = calibrated(name, given)
    uq = method(name, given).fit_rows(rows_of(*given.data), calibration=held and rows_of(*held), progress=False)
    with torch.no_grad():
        found, expected = uq.predict_rows(model[:-1](given.fresh), model(given.fresh)), fitted(name, own)(given.fresh)
    if fitted(name, own).tap.context:  # of which such rows know nothing
        expected = replace(expected, support=found.support)
    assert_same(found, expected, **CLOSE)


@only(["laplace"])
def test_a_method_that_reads_the_last_layer_wants_rows_with_their_model(name, own):
    x, y = problem(own).data
    with torch.no_grad():
        rows = Recording.of(fitted(name, own).task, base(own)[:-1](x), base(own)(x), y)
    with fails(SettingsError, "Expected a model that ends in a Linear layer, but features come from rows without"):
        method(name, problem(own)).fit_rows(rows, progress=False)


@only(TRAINED)
def test_rows_are_no_use_to_a_method_that_trains_networks(name, own):
    rows = method("splitpoint", problem(own)).record(base(own), problem(own).data, progress=False)
    with fails(
        SettingsError, "Expected a post-hoc method to fit on 128 recorded rows, but .* trains networks of its own"
    ):
        method(name, problem(own)).fit_rows(rows)
