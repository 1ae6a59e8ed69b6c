"""The public contract of every method behind one interface: settings, fields, the predictor, randomness."""

import copy
from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from problems import (
    CLOSE,
    EXACT,
    LEVELS,
    TRAINED,
    assert_same,
    base,
    classifications,
    differ,
    drawn,
    each,
    every,
    fit,
    fitted,
    only,
    over,
    post_hoc,
    problem,
    regressions,
    tensors,
)
from splitpoint.baselines import METHODS

# Settings


@pytest.mark.parametrize("name", METHODS)
def test_settings_are_frozen_and_compare_by_value(name):
    settings = METHODS[name]()
    with pytest.raises(FrozenInstanceError):
        settings.epochs = 7
    assert settings == METHODS[name]()
    assert settings != METHODS[name](epochs=7)
    assert not callable(settings)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name):
    about = METHODS[name].about
    assert set(about.tasks) <= {"regression", "classification"}
    assert all([about.tasks, about.passes, about.needs, about.epistemic, about.reference])


# Fields


@regressions
def test_regression_fields_have_the_shape_of_the_output_and_bounds_are_ordered(name, own):
    uq, output = fitted(name, own), problem(own).output
    prediction = uq(problem(own).fresh)
    assert isinstance(prediction, sp.RegressionPrediction)
    assert prediction.levels == LEVELS
    for field, value in tensors(prediction).items():
        extra = (len(LEVELS),) if field in ("lowers", "uppers") else ()
        assert value.shape == output.shape + extra, field
        assert torch.isfinite(value).all(), field
    edges = [prediction.lowers[..., 1], prediction.lowers[..., 0], prediction.mean]
    edges += [prediction.uppers[..., 0], prediction.uppers[..., 1]]
    assert all((low <= high).all() for low, high in pairwise(edges))
    assert prediction.lower.shape == prediction.upper.shape == output.shape
    assert (prediction.aleatoric >= 0).all()


@classifications
def test_classification_fields_have_the_shape_of_the_logits(name, own):
    uq, output = fitted(name, own), problem(own).output
    prediction = uq(problem(own).fresh)
    without = output.shape[:1] + output.shape[2:]
    assert isinstance(prediction, sp.ClassificationPrediction)
    for field, value in tensors(prediction).items():
        assert value.shape == (output.shape if field in ("probs", "base_probs", "mar", "sets") else without), field
        assert torch.isfinite(value.double()).all(), field
    for probs in (prediction.probs, prediction.base_probs):
        assert (probs >= 0).all()
        torch.testing.assert_close(probs.sum(1), torch.ones(without))
    assert torch.equal(prediction.label, prediction.probs.argmax(1))
    assert (prediction.sets is not None) == (name == "conformal")


def test_targets_with_and_without_a_channel_axis_mean_the_same():
    for name in ("gaussian", "deep_ensemble", "sqr_oc", "laplace"):
        assert_same(fit(name, "flat")(drawn(3, 12, 3)), fitted(name, "scalar")(drawn(3, 12, 3)), **CLOSE)


@over(["scalar", "pair", "maps", "classes", "label_maps"])
def test_answers_come_in_the_units_of_the_targets(name, own):
    """The trained networks are better than a constant, though targets are neither centred nor scaled."""
    prediction, (_, y) = fitted(name, own).predict(problem(own).data[0]), problem(own).data
    if problem(own).task == "classification":
        seen = y != -100
        rate = (prediction.label == y)[seen].float().mean()
        assert rate > y[seen].bincount().max() / seen.sum()
    else:
        axes = [axis for axis in range(y.dim()) if axis != 1]
        error = (prediction.mean - y).square().mean(axes)
        assert (error < 0.75 * y.var(axes)).all(), error / y.var(axes)


# The predictor


@every
def test_a_predictor_is_a_module_in_eval_mode_that_stays_so(name, own):
    uq, x = fitted(name, own), problem(own).fresh
    assert isinstance(uq, nn.Module)
    before = uq(x)
    assert uq.train() is uq
    assert [part for part, module in uq.named_modules() if module.training] == []
    assert_same(before, uq(x), **EXACT)
    assert [part for part, module in uq.named_modules() if module.training] == []


@each
def test_a_prediction_asks_for_no_gradient(name, own):
    x = problem(own).fresh.clone().requires_grad_()
    assert not any(value.requires_grad for value in tensors(fitted(name, own)(x)).values())


@every
def test_rows_do_not_depend_on_the_rest_of_their_batch(name, own):
    uq, x = fitted(name, own), problem(own).fresh
    whole = uq(x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert_same(uq(x[order]), whole[order], **CLOSE)
    for row in range(3):
        assert_same(uq(x[row : row + 1]), whole[row : row + 1], **CLOSE)
    assert_same(uq.predict(DataLoader(TensorDataset(x), batch_size=5)), whole, **CLOSE)


@each
def test_a_threshold_flags_a_share_of_its_own_data(name, own):
    uq, (x, _) = copy.deepcopy(fitted(name, own)), problem(own).data
    prediction = uq.set_threshold(x, quantile=0.9).predict(x)
    if METHODS[name].about.epistemic == "none":
        assert not prediction.flagged.any()
    else:
        assert 0.05 < prediction.flagged.float().mean() < 0.15


@each
def test_the_representation_names_the_method(name, own):
    text = repr(fitted(name, own))
    assert "fitted:" in text
    assert "confidence_level" in text or "SplitPoint" in text


# Randomness


@only([name for name in METHODS if name not in ("splitpoint", "splitpoint_calibrated")])
def test_the_same_seed_gives_the_same_bits(name, own):
    torch.manual_seed(999)
    one = fit(name, own, model=problem(own).factory, epochs=2)
    torch.manual_seed(1)
    other = fit(name, own, model=problem(own).factory, epochs=2)
    assert_same(one(problem(own).fresh), other(problem(own).fresh), **EXACT)


@only(["splitpoint", "splitpoint_calibrated"])
def test_the_same_seed_gives_the_same_heads(name, own):
    torch.manual_seed(999)
    assert_same(fit(name, own)(problem(own).fresh), fitted(name, own)(problem(own).fresh), **EXACT)


@only([*TRAINED, "softmax", "laplace"])
def test_another_seed_trains_another_network(name, own):
    one, other = (fit(name, own, model=problem(own).factory, seed=seed, epochs=2) for seed in (0, 1))
    assert differ(one(problem(own).fresh), other(problem(own).fresh))


@every
def test_the_global_random_state_stays_as_it_was(name, own):
    start = base(own) if post_hoc(name) else problem(own).factory
    uq = None if name.startswith("splitpoint") else fit
    torch.manual_seed(17)
    before = torch.get_rng_state()
    uq = fitted(name, own) if uq is None else fit(name, own, model=start, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)
    uq.predict(problem(own).fresh)
    assert torch.equal(torch.get_rng_state(), before)


def test_splitpoint_leaves_the_global_random_state_as_it_was():
    torch.manual_seed(17)
    before = torch.get_rng_state()
    fit("splitpoint", "classes", model=problem("classes").factory, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@only([*TRAINED, "ddu", "conformal"])
def test_fit_trains_where_gradients_are_off(name, own, context):
    with context():
        uq = fit(name, own, model=problem(own).factory, epochs=2)
    plain = fit(name, own, model=problem(own).factory, epochs=2)
    assert_same(uq(problem(own).fresh), plain(problem(own).fresh), **EXACT)
