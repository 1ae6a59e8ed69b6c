"""The public contract of every method behind one interface: what `fit` takes, what predictors give, what fails how."""

import copy
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from splitpoint.baselines import METHODS, SplitPoint, train_network
from splitpoint.baselines.answers import mixture_answer, mixture_of_normals, normal_answer
from splitpoint.baselines.certificates import certificate_score, fit_certificates
from splitpoint.baselines.conformal import cumulative_scores
from splitpoint.baselines.evidential_regression import NormalInverseGamma
from splitpoint.baselines.student import student_quantiles
from splitpoint.cache import Table
from splitpoint.errors import DataError, SettingsError, SplitPointError, StorageError
from splitpoint.metrics import auroc

ROWS = 128
LEVELS = (0.5, 0.95)
EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

# Problems: what every method is fitted on, once


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Squeezed(nn.Module):
    """A network with outputs (N,)."""

    def __init__(self):
        super().__init__()
        self.body = vector_network(1)

    def forward(self, x):
        return self.body(x).squeeze(-1)


def vector_network(outputs):
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


def map_network(outputs):
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, outputs, 1))


def numbers(x, seed):
    clean = torch.stack([x[:, 0].sin() + x[:, 1], 10 + 5 * x[:, 2]], 1)
    return clean + 0.3 * drawn(seed, *clean.shape)


def classes(x):
    return (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


@dataclass(frozen=True)
class Problem:
    """A network to build, data to fit on and to calibrate with, inputs to predict, and how to train."""

    task: str
    factory: object
    data: tuple
    calibration: tuple
    fresh: torch.Tensor
    epochs: int = 16
    batch_size: int = 32

    @property
    def output(self):
        return self.factory()(self.fresh)


def vectors(seed, target, rows=ROWS):
    x = drawn(seed, rows, 3)
    return x, target(x, seed + 100)


def maps(seed, target, rows=24):
    x = drawn(seed, rows, 2, 5, 4)
    return x, target(x, seed + 100)


def map_numbers(x, seed):
    return torch.stack([x[:, 0] + x[:, 1], 3 * x[:, 0]], 1) + 0.3 * drawn(seed, len(x), 2, 5, 4)


def map_labels(x, seed):
    label = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return torch.where(drawn(seed, *label.shape) > 1.5, -100, label)


VECTOR_TARGETS = {
    "scalar": ("regression", lambda: vector_network(1), lambda x, seed: numbers(x, seed)[:, :1]),
    "flat": ("regression", lambda: vector_network(1), lambda x, seed: numbers(x, seed)[:, 0]),
    "squeezed": ("regression", Squeezed, lambda x, seed: numbers(x, seed)[:, 0]),
    "pair": ("regression", lambda: vector_network(2), numbers),
    "classes": ("classification", lambda: vector_network(3), lambda x, _: classes(x)),
}
MAP_TARGETS = {
    "maps": ("regression", lambda: map_network(2), map_numbers),
    "label_maps": ("classification", lambda: map_network(3), map_labels),
}
NO_MAPS = {"laplace"}


@pytest.fixture(autouse=True, scope="module")
def short_heads():
    """Few epochs for split-point heads, whose training is tested elsewhere."""
    heads = SplitPoint._heads
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SplitPoint, "_heads", lambda self, given: replace(heads(self, given), epochs=4))
        yield


@cache
def problem(name):
    if name in VECTOR_TARGETS:
        task, factory, target = VECTOR_TARGETS[name]
        parts = vectors(1, target), vectors(2, target), drawn(3, 12, 3)
        return Problem(task, factory, *parts)
    task, factory, target = MAP_TARGETS[name]
    return Problem(task, factory, maps(1, target), maps(2, target), drawn(3, 5, 2, 5, 4), epochs=12, batch_size=4)


@cache
def base(name):
    own = problem(name)
    return train_network(
        own.factory, own.data, epochs=own.epochs, batch_size=own.batch_size, learning_rate=1e-2, progress=False
    )


def method(name, own, **changes):
    few = {"members": 3} if name == "deep_ensemble" else {}
    settings = {"epochs": own.epochs, "batch_size": own.batch_size, "learning_rate": 1e-2, "confidence_level": LEVELS}
    return METHODS[name](**(settings | few | changes))


def post_hoc(name):
    return METHODS[name].about.post_hoc


def calibrated(name, own):
    """Calibration data where the method needs them."""
    return own.calibration if "calibration" in METHODS[name].about.needs else None


def fit(name, problem_name, model=None, *, data=None, seed=0, **changes):
    own = problem(problem_name)
    start = model or (base(problem_name) if post_hoc(name) else own.factory)
    return method(name, own, **changes).fit(
        start, own.data if data is None else data, calibration=calibrated(name, own), seed=seed, progress=False
    )


@cache
def fitted(name, problem_name):
    return fit(name, problem_name)


def cases(problems):
    """Methods with the problems that they can solve, in a fixed order."""
    return [
        (name, own)
        for own in problems
        for name, kind in METHODS.items()
        if {**VECTOR_TARGETS, **MAP_TARGETS}[own][0] in kind.about.tasks
        and not (own in MAP_TARGETS and name in NO_MAPS)
    ]


def over(problems):
    found = cases(problems)
    return pytest.mark.parametrize(("name", "own"), found, ids=[f"{name}-{own}" for name, own in found])


every = over([*VECTOR_TARGETS, *MAP_TARGETS])
each = over(["scalar", "classes"])
regressions = over(["scalar", "flat", "squeezed", "pair", "maps"])
classifications = over(["classes", "label_maps"])
TRAINED = [name for name in METHODS if not post_hoc(name)]
POST_HOC = [name for name in METHODS if post_hoc(name)]


def only(names, problems=("scalar", "classes")):
    found = [case for case in cases(problems) if case[0] in names]
    return pytest.mark.parametrize(("name", "own"), found, ids=[f"{name}-{own}" for name, own in found])


def tensors(prediction):
    values = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def assert_same(one, other, **tolerance):
    one, other = tensors(one), tensors(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance)


def differ(one, other):
    return any(not torch.equal(value, tensors(other)[name]) for name, value in tensors(one).items())


def fails(kind, match):
    return pytest.raises(kind, match=match)


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


@each
def test_fit_many_gives_a_predictor_for_each_data_set(name, own):
    if name.startswith("splitpoint"):
        pytest.skip("heads of several models are tested with the method itself")
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


# What users get wrong


def one_sentence(error):
    text = str(error.value)
    assert isinstance(error.value, SplitPointError)
    assert text.startswith("Expected")
    assert "\n" not in text


RANGES = {
    "confidence_level": ("gaussian", {"confidence_level": 1.0}),
    "confidence_levels": ("conformal", {"confidence_level": (0.5, 0.0)}),
    "task": ("gaussian", {"task": "classification"}),
    "unknown task": ("deep_ensemble", {"task": "ranking"}),
    "output": ("softmax", {"output": "scores"}),
    "temperature": ("softmax", {"temperature": "brier"}),
    "no temperature": ("temperature_scaling", {"temperature": None}),
    "temperature of splitpoint": ("splitpoint", {"temperature": "nll"}),
    "temperature of numbers": ("deep_ensemble", {"temperature": "nll", "task": "regression"}),
    "epochs": ("gaussian", {"epochs": 0}),
    "learning_rate": ("gaussian", {"learning_rate": 0.0}),
    "batch_size": ("gaussian", {"batch_size": 0}),
    "rows_per_call": ("gaussian", {"rows_per_call": 0}),
    "positions": ("oc", {"positions": 0}),
    "weight_decay": ("gaussian", {"weight_decay": -1.0}),
    "optimiser": ("gaussian", {"optimiser": "lbfgs"}),
    "milestones": ("gaussian", {"milestones": (0.5, 2.0)}),
    "members": ("deep_ensemble", {"members": 0}),
    "dropout": ("mc_dropout", {"dropout": 1.0}),
    "passes": ("mc_dropout", {"passes": 1}),
    "evidence": ("evidential_regression", {"regulariser": -1.0}),
    "quantile evidence": ("evidential_quantile", {"regulariser": float("nan")}),
    "class evidence": ("evidential_classification", {"regulariser": float("inf")}),
    "annealing": ("evidential_classification", {"annealing": 0.0}),
    "certificates": ("oc", {"certificates": 0}),
    "penalty": ("sqr_oc", {"penalty": 0.0}),
    "spectral_norm": ("ddu", {"spectral_norm": 0.0}),
    "hessian": ("laplace", {"hessian": "diagonal"}),
    "prior_precision": ("laplace", {"prior_precision": 0.0}),
    "noise": ("laplace", {"noise": -1.0}),
    "residual": ("conformal", {"residual": "signed"}),
    "recipe": ("splitpoint", {"recipe": "fast"}),
}


@pytest.mark.parametrize("case", RANGES)
def test_settings_out_of_range_are_refused(case):
    name, settings = RANGES[case]
    with pytest.raises(SettingsError) as error:
        METHODS[name](**settings)
    one_sentence(error)


@only([name for name in METHODS if "regression" not in METHODS[name].about.tasks], ["classes"])
def test_classifiers_do_not_take_numbers(name, own):
    with pytest.raises(SplitPointError) as error:
        fit(name, own, data=(drawn(1, 40, 3), drawn(2, 40, 3)), epochs=1)
    one_sentence(error)


@only(["softmax", "deep_ensemble", "temperature_scaling", "ddu"], ["classes"])
def test_a_temperature_wants_calibration_data(name, own):
    with pytest.raises(SettingsError, match="Expected calibration data for temperature='nll'") as error:
        method(name, problem(own), temperature="nll").fit(problem(own).factory, problem(own).data, progress=False)
    one_sentence(error)


@only(["oc", "deep_ensemble", "laplace"], ["scalar"])
def test_numbers_have_no_temperature(name, own):
    given = problem(own)
    with pytest.raises(SettingsError, match="temperature") as error:
        method(name, given, temperature="nll").fit(
            given.factory, given.data, calibration=given.calibration, progress=False
        )
    one_sentence(error)


@only(["conformal"])
def test_conformal_prediction_wants_calibration_data(name, own):
    with pytest.raises(SettingsError, match="Expected calibration data for conformal prediction") as error:
        method(name, problem(own)).fit(base(own), problem(own).data, progress=False)
    one_sentence(error)


@only(["splitpoint_calibrated"], ["classes"])
def test_calibrated_probabilities_want_calibration_data(name, own):
    with pytest.raises(SettingsError, match="Expected calibration data for calibrated probabilities") as error:
        method(name, problem(own)).fit(base(own), problem(own).data, progress=False)
    one_sentence(error)


@only(["conformal"])
def test_conformal_prediction_wants_enough_calibration_data(name, own):
    given = problem(own)
    few = tuple(part[:10] for part in given.calibration)
    with pytest.raises(DataError, match="Expected at least 19 calibration") as error:
        method(name, given).fit(base(own), given.data, calibration=few, progress=False)
    one_sentence(error)


@pytest.mark.parametrize("label", [3, -1], ids=["above", "below"])
@only(list(METHODS), ["classes"])
def test_labels_out_of_range_are_refused(name, own, label):
    x, y = problem(own).data
    wrong = y.clone()
    wrong[70] = label
    with pytest.raises(DataError, match=f"labels .*but got {label}") as error:
        fit(name, own, data=(x, wrong))
    one_sentence(error)


@only(list(METHODS), ["scalar"])
def test_infinite_targets_are_refused(name, own):
    x, y = problem(own).data
    wrong = y.clone()
    wrong[70] = torch.inf
    with pytest.raises(DataError, match="finite targets") as error:
        fit(name, own, data=(x, wrong))
    one_sentence(error)


@only(list(METHODS))
def test_targets_that_are_all_missing_are_refused(name, own):
    x, y = problem(own).data
    with pytest.raises(DataError) as error:
        fit(name, own, data=(x, torch.full_like(y, torch.nan if y.is_floating_point() else -100)))
    one_sentence(error)


@only(list(METHODS))
def test_targets_of_another_shape_are_refused(name, own):
    x, y = problem(own).data
    with pytest.raises(SplitPointError) as error:
        fit(name, own, data=(x, torch.stack([y, y], 1)))
    one_sentence(error)


@only(list(METHODS))
@pytest.mark.parametrize("form", ["nothing", "no rows", "one number", "lengths"])
def test_data_that_are_none_are_refused(name, own, form):
    x, y = problem(own).data
    with pytest.raises(DataError) as error:
        fit(name, own, data={"nothing": [], "no rows": (x[:0], y[:0]), "one number": 3, "lengths": (x, y[:5])}[form])
    one_sentence(error)


@only([name for name in METHODS if name != "splitpoint_calibrated"])
def test_a_stream_that_can_be_read_once_is_refused(name, own):
    """Not read from its second batch on."""
    x, y = problem(own).data
    with pytest.raises(DataError, match="iterator") as error:
        fit(name, own, data=iter([(x[:64], y[:64]), (x[64:], y[64:])]))
    one_sentence(error)


@only([name for name in TRAINED if name != "evidential_classification"], ["scalar"])
def test_networks_end_in_their_last_layer(name, own):
    with pytest.raises(SettingsError, match="Expected a network that ends in its last layer") as error:
        fit(name, own, model=lambda: nn.Sequential(*vector_network(1), nn.Softplus()))
    one_sentence(error)


@only(list(METHODS))
@pytest.mark.parametrize("wrong", ["string", "other"])
def test_a_model_is_a_module_or_a_function_that_builds_one(name, own, wrong):
    with pytest.raises(SettingsError) as error:
        fit(name, own, model={"string": "resnet", "other": lambda: "resnet"}[wrong])
    one_sentence(error)


@pytest.mark.parametrize("name", [name for name in METHODS if len(METHODS[name].about.tasks) == 2])
def test_integers_for_one_output_ask_for_the_task(name):
    x, y = problem("flat").data
    with pytest.raises(SettingsError, match="Expected task= for integer targets") as error:
        fit(name, "flat", data=(x, (y > 0).long()))
    one_sentence(error)


def test_integers_for_one_output_are_numbers_or_labels_as_the_task_says():
    x, y = problem("flat").data
    for name in ("deep_ensemble", "laplace"):
        uq = fit(name, "flat", data=(x, (y > 0).long()), task="classification", epochs=2)
        assert uq(x).probs.shape == (ROWS, 2)
        uq = fit(name, "flat", data=(x, (y > 0).long()), task="regression", epochs=2)
        assert uq(x).mean.shape == (ROWS, 1)


def test_maps_do_not_suit_a_linear_last_layer():
    with pytest.raises(SettingsError, match="Expected a model that ends in a Linear layer") as error:
        fit("laplace", "maps")
    one_sentence(error)


def test_a_bound_on_spectral_norms_needs_a_function():
    with pytest.raises(SettingsError, match="Expected a function that builds the network with spectral_norm=") as error:
        fit("ddu", "classes", spectral_norm=3.0)
    one_sentence(error)


# Errors that other implementations make


def test_half_widths_are_deviations_and_not_variances():
    """Variances 9 and 16 make a deviation of 5, whose 95% interval is 1.96 times as wide on each side."""
    answer = normal_answer(torch.tensor([[2.0]]), torch.tensor([[9.0]]), torch.tensor([[16.0]]), (0.5, 0.95))
    expected = torch.tensor([[[2 + 5 * 0.6744898, 2 + 5 * 1.9599640]]])
    torch.testing.assert_close(answer.uppers, expected)
    torch.testing.assert_close(answer.lowers, 4 - expected)
    assert answer.scale.item() == 5
    assert answer.total.item() == 25


def test_a_mixture_of_normals_has_the_mean_variance_and_the_variance_of_means():
    means, variances = torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[[2.0]], [[4.0]]])
    answer = mixture_of_normals(means, variances, (0.95,))
    assert (answer.mean.item(), answer.aleatoric.item(), answer.epistemic.item()) == (2.0, 3.0, 1.0)


def test_mutual_information_is_the_entropy_of_the_mean_less_the_mean_entropy():
    answer = mixture_answer(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    torch.testing.assert_close(answer.epistemic, torch.tensor([np.log(2)], dtype=torch.float32))
    sure = mixture_answer(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))
    torch.testing.assert_close(sure.epistemic, torch.zeros(1))


def test_reported_intervals_follow_from_the_reported_scale():
    for name in ("gaussian", "mc_dropout", "deep_ensemble", "laplace"):
        prediction = fitted(name, "pair")(problem("pair").fresh)
        half = (prediction.uppers - prediction.lowers).double() / 2
        for index, level in enumerate(LEVELS):
            expected = stats.norm.ppf((1 + level) / 2) * prediction.total.double().sqrt()
            torch.testing.assert_close(half[..., index], expected, rtol=1e-4, atol=1e-5)


def test_evidential_intervals_are_those_of_a_student_t():
    prediction = fitted("evidential_regression", "pair")(problem("pair").fresh)
    half = (prediction.uppers - prediction.lowers).double() / 2
    for index, level in enumerate(LEVELS):
        quantile = stats.t.ppf((1 + level) / 2, prediction.freedom.double().numpy())
        expected = torch.from_numpy(quantile) * prediction.scale.double()
        torch.testing.assert_close(half[..., index], expected, rtol=1e-4, atol=1e-5)


def test_evidential_scale_by_hand():
    """gamma 0, nu 1, alpha 3, beta 4: squared scale 4 (1 + 1) / (1 * 3), E[sigma^2] = 2, Var[mu] = 2."""
    prior = NormalInverseGamma(*(torch.tensor([[value]]) for value in (0.0, 1.0, 3.0, 4.0)))
    assert (prior.aleatoric.item(), prior.epistemic.item()) == (2.0, 2.0)
    uq = fitted("evidential_regression", "scalar")
    raw = torch.tensor([0.0, np.log(np.expm1(1)), np.log(np.expm1(2)), np.log(np.expm1(4))], dtype=torch.float32)
    answer = uq.method._answer(uq, raw.reshape(1, 1, 4, 1), None)
    spread = uq.fitted["spread"].item()
    assert answer.freedom.item() == pytest.approx(6, rel=1e-5)
    assert answer.scale.item() == pytest.approx(spread * (8 / 3) ** 0.5, rel=1e-5)
    assert answer.aleatoric.item() == pytest.approx(2 * spread**2, rel=1e-5)


@pytest.mark.parametrize("probability", [0.6, 0.75, 0.975, 0.9995])
def test_student_quantiles_are_those_of_scipy(probability):
    freedom = torch.tensor([2.0, 2.1, 3.0, 5.5, 20.0, 1e3, 1e7], dtype=torch.float64)
    expected = torch.from_numpy(stats.t.ppf(probability, freedom.numpy()))
    torch.testing.assert_close(student_quantiles(freedom, probability), expected, rtol=5e-6, atol=0)


class Identity(nn.Module):
    """Passes its input on, through a last layer with weight 1 and bias 0."""

    def __init__(self, outputs=1):
        super().__init__()
        self.last = nn.Linear(outputs, outputs)
        with torch.no_grad():
            self.last.weight.copy_(torch.eye(outputs))
            self.last.bias.zero_()

    def forward(self, x):
        return self.last(x)


def test_conformal_radius_by_hand():
    """Residual sizes 1 to 9: level 0.5 takes the 5th and 0.9 the 9th smallest, ceil(10 level)."""
    data = torch.zeros(9, 1), torch.tensor([3.0, -1, 9, -7, 5, 2, -4, 8, -6])[:, None]
    uq = METHODS["conformal"](confidence_level=(0.5, 0.9)).fit(Identity(), data, calibration=data, progress=False)
    prediction = uq(torch.tensor([[100.0]]))
    assert prediction.uppers.tolist() == [[[105.0, 109.0]]]
    assert prediction.lowers.tolist() == [[[95.0, 91.0]]]


def test_conformal_intervals_cover():
    x, y = drawn(5, 4000, 1), drawn(6, 4000, 1)
    for residual in ("absolute", "normalised"):
        uq = METHODS["conformal"](confidence_level=0.8, residual=residual).fit(
            Identity(), (x[:500], y[:500]), calibration=(x[500:2000], y[500:2000]), progress=False
        )
        prediction = uq(x[2000:])
        covered = (prediction.lower <= y[2000:]) & (y[2000:] <= prediction.upper)
        assert covered.float().mean() == pytest.approx(0.8, abs=0.03)


def test_cumulative_scores_belong_to_their_own_classes():
    """The score of a class is its own probability and those above it: never that of the class at its rank."""
    probs = torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]])
    torch.testing.assert_close(cumulative_scores(probs), torch.tensor([[1.0, 0.6, 0.9], [1.0, 0.8, 0.5]]))


def test_conformal_sets_by_hand():
    """All labels are the second most probable class of (0.6, 0.3, 0.1), so sets reach 0.9 and hold two classes."""
    logits = torch.tensor([[0.1, 0.6, 0.3]]).log().repeat(40, 1)
    data = logits, torch.full((40,), 2)
    uq = METHODS["conformal"](confidence_level=0.9).fit(Identity(3), data, calibration=data, progress=False)
    assert uq(torch.tensor([[0.1, 0.6, 0.3], [0.3, 0.1, 0.6]]).log()).sets.tolist() == [
        [False, True, True], [True, False, True],
    ]  # fmt: skip
    assert uq(torch.tensor([[0.99, 0.005, 0.005]]).log()).sets.sum() >= 1


def test_dropout_is_on_in_prediction_and_nothing_else_is():
    """Passes differ, though batch normalisation keeps its statistics and no module leaves eval mode."""
    given = problem("scalar")

    def build():
        return nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    uq = fit("mc_dropout", "scalar", model=build)
    state = copy.deepcopy(uq.state_dict())
    prediction = uq(given.fresh)
    assert (prediction.epistemic > 0).all()
    assert all(torch.equal(value, state[key]) for key, value in uq.state_dict().items())
    assert not any(module.training for module in uq.modules())


def test_dropout_rates_of_the_network_are_kept():
    def build():
        return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.35), nn.Linear(16, 1))

    (network,) = fit("mc_dropout", "scalar", model=build, dropout=0.1, epochs=1).networks
    assert [module.p for module in network.modules() if isinstance(module, nn.Dropout)] == [0.35]


@pytest.mark.parametrize("penalty", [0.2, 1.0, 10.0])
def test_certificates_are_orthogonal_with_gains_between_0_and_1(penalty):
    features = drawn(1, 200, 6) @ torch.diag(torch.tensor([3.0, 2, 1, 1, 0.5, 0.1])) @ drawn(2, 6, 6)
    learned = fit_certificates(Table.in_memory({"features": features}), 4, penalty)
    gram = learned["certificates"].T @ learned["certificates"]
    gains = gram.diagonal()
    torch.testing.assert_close(gram, torch.diag(gains), rtol=0, atol=1e-5)
    assert ((gains >= 0) & (gains <= 1 + 1e-6)).all()
    assert gains[0] > 0.9


def test_certificates_are_at_the_minimum_of_their_loss():
    """Gradient descent on ``E |C^T h|^2 + penalty |C^T C - I|^2`` finds nothing lower than the closed form."""
    features = drawn(1, 300, 5) @ drawn(2, 5, 5)
    learned = fit_certificates(Table.in_memory({"features": features}), 3, 0.7)
    rows = (features - learned["center"]) / learned["spread"]

    def loss(certificates):
        gram = certificates.T @ certificates
        return (rows @ certificates).square().sum(1).mean() + 0.7 * (gram - torch.eye(3)).square().sum()

    descended = (0.5 * drawn(3, 5, 3)).requires_grad_()
    optimiser = torch.optim.Adam([descended], 0.02)
    for _ in range(1500):
        optimiser.zero_grad()
        loss(descended).backward()
        optimiser.step()
    assert float(loss(learned["certificates"])) == pytest.approx(loss(descended).item(), rel=1e-3)


def test_the_penalty_of_certificates_matters():
    """With a small one, certificates that move on the training set fade."""
    features = drawn(1, 200, 6)
    sizes = {}
    for penalty in (0.6, 10.0):
        learned = fit_certificates(Table.in_memory({"features": features}), 6, penalty)
        sizes[penalty] = certificate_score(features, **learned).mean()
    assert sizes[0.6] < 0.6 * sizes[10.0]
    strong, weak = (fit("oc", "scalar", penalty=penalty)(problem("scalar").fresh) for penalty in (10.0, 0.1))
    assert differ(replace(strong, reference=None), replace(weak, reference=None))
