"""The public contract of every method behind one interface: what `fit` takes and what predictors give."""

import copy
from dataclasses import FrozenInstanceError
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from problems import (
    CLOSE,
    EXACT,
    LEVELS,
    POST_HOC,
    ROWS,
    TRAINED,
    Squeezed,
    assert_same,
    base,
    calibrated,
    classes,
    classifications,
    differ,
    drawn,
    each,
    every,
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
    regressions,
    tensors,
    vector_network,
    vectors,
)
from splitpoint.baselines import METHODS, train_network
from splitpoint.errors import SettingsError, StorageError
from splitpoint.metrics import auroc

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
    assert auroc(near, away) > 0.9


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
