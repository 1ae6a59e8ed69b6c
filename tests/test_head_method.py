"""Untrained models: base network first and heads after, or both in one loop."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from splitpoint import training
from splitpoint.metrics import accuracy, nll, picp, picp_down, picp_up, rmse

WAYS = ["fit_stagewise", "fit_jointly"]
ways = pytest.mark.parametrize("way", WAYS)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(outputs, inputs=2, width=32, extra=()):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), *extra, nn.Linear(width, outputs))


def sine(seed, rows=600):
    x = 2 * torch.rand(rows, 2, generator=torch.Generator().manual_seed(seed)) - 1
    return x, torch.sin(3 * x[:, :1]) + 0.2 * drawn(seed + 1, rows, 1)


def blobs(seed, rows=600):
    label = torch.arange(rows) % 3
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    return centres[label] + drawn(seed, rows, 2), label


@ways
def test_a_regression_network_and_its_heads_learn_from_scratch(way):
    model = network(1)
    method = sp.SplitPointRegressor(0.9, epochs=20, folds=2)
    loader = DataLoader(TensorDataset(*sine(0)), batch_size=60)
    uq = getattr(method, way)(model, loader, base_epochs=100, base_learning_rate=5e-3, progress=False)
    x, y = sine(50, 3000)
    out = uq(x)
    assert rmse(out, y) < 0.25  # noise alone is 0.2
    with torch.no_grad():
        torch.testing.assert_close(out.mean, model(x))
    assert 0.82 <= picp(out, y) <= 0.97
    assert min(picp_up(out, y), picp_down(out, y)) > 0.75
    assert math.isclose(float(out.mar.median()), 0.2 * math.sqrt(2 / math.pi), rel_tol=0.3)


@ways
@pytest.mark.parametrize("mars", ["simplex", "free"])
def test_a_classifier_and_its_heads_learn_from_scratch(way, mars):
    model = network(3)
    loader = DataLoader(TensorDataset(*blobs(0)), batch_size=60)
    uq = getattr(sp.SplitPointClassifier(mars=mars), way)(
        model, loader, base_epochs=30, base_learning_rate=5e-3, progress=False
    )
    x, y = blobs(50, 3000)
    out = uq(x)
    assert accuracy(out.probs, y) > 0.88
    with torch.no_grad():
        torch.testing.assert_close(out.base_probs, model(x).softmax(1))
    p = out.base_probs.double()
    expected = (2 * p * (1 - p) - out.mar).abs().sum(1)
    torch.testing.assert_close(out.sds.double(), expected, rtol=1e-4, atol=1e-5)
    wrong = out.label != y
    assert sp.metrics.auroc(out.total[~wrong], out.total[wrong]) > 0.8


@ways
def test_calibration_data_are_used(way):
    x, y = sine(20, 400)
    method = sp.SplitPointRegressor(0.9, epochs=2, folds=0)
    uq = getattr(method, way)(network(1), sine(0), calibration=(x, y), base_epochs=3, progress=False)
    assert uq.method.interval == "conformal"
    out = uq(x)
    assert 0.9 <= picp_up(out, y) <= 0.9 + 2 / 100
    assert 0.9 <= picp_down(out, y) <= 0.9 + 2 / 100

    x, y = blobs(20, 400)
    uq = getattr(sp.SplitPointClassifier(epochs=2), way)(
        network(3), blobs(0), calibration=(x, y), base_epochs=3, progress=False
    )
    assert uq.calibrated
    out = uq(x)
    assert nll(out.probs, y) <= nll(out.base_probs, y) + 1e-4


@ways
@pytest.mark.parametrize("mode", [True, False])
def test_the_model_gets_its_mode_back(way, mode):
    model = network(1, extra=(nn.BatchNorm1d(32), nn.Dropout(0.2))).train(mode)
    model[3].train(not mode)
    before = copy.deepcopy(model.state_dict())
    method = sp.SplitPointRegressor(epochs=2, folds=0)
    uq = getattr(method, way)(model, sine(0), base_epochs=2, progress=False)
    assert [module.training for module in model.modules()] == [mode, mode, mode, mode, not mode, mode]
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[2].running_mean, before["2.running_mean"])  # it did train in train mode
    assert all(p.requires_grad and (p.grad is None or not p.grad.any()) for p in model.parameters())
    x, _ = sine(1)
    assert torch.equal(uq(x).upper, uq(x).upper)


@ways
@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_iterators_are_refused_before_anything_is_trained(way, kind):
    x, y = sine(0) if kind is sp.SplitPointRegressor else blobs(0)
    model = network(1 if kind is sp.SplitPointRegressor else 3)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(sp.DataError, match="once per epoch, but got an iterator; pass a DataLoader or a list"):
        getattr(kind(epochs=1), way)(model, iter([(x, y)]), base_epochs=2, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@ways
def test_an_impossible_wish_is_refused_before_anything_is_trained(way):
    model = network(1)
    before = copy.deepcopy(model.state_dict())
    method = sp.SplitPointRegressor(interval="conformal", epochs=1, folds=0)
    with pytest.raises(sp.SettingsError, match="calibration data for interval='conformal', but got none"):
        getattr(method, way)(model, sine(0), base_epochs=1, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@ways
@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_empty_data_are_refused(way, kind):
    x, y = sine(0) if kind is sp.SplitPointRegressor else blobs(0)
    model = network(1 if kind is sp.SplitPointRegressor else 3)
    with pytest.raises(sp.DataError, match=r"Expected data to .* pass at least two rows"):
        getattr(kind(epochs=1), way)(model, (x[:0], y[:0]), base_epochs=1, progress=False)


@ways
def test_targets_of_a_wrong_shape_are_refused_by_shape(way):
    x, y = sine(0)
    with pytest.raises(sp.ShapeError, match=r"\(256, 1\), but got \(256, 2\); reshape the targets"):
        getattr(sp.SplitPointRegressor(epochs=1, folds=0), way)(
            network(1), (x, y.repeat(1, 2)), base_epochs=1, progress=False
        )


@ways
@pytest.mark.parametrize("bad", [{"base_epochs": 0}, {"base_learning_rate": 0.0}, {"base_learning_rate": -1.0}])
def test_bad_settings_of_the_base_training_are_refused(way, bad):
    with pytest.raises(sp.SettingsError, match=r"Expected (epochs >= 1|learning_rate > 0) .*but got"):
        getattr(sp.SplitPointRegressor(epochs=1), way)(network(1), sine(0), progress=False, **bad)


class Named(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        out = self.inner(x)
        return {"auxiliary": out.detach().sum(), "prediction": out}


@ways
@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_models_that_return_a_dict(way, kind):
    regression = kind is sp.SplitPointRegressor
    data = sine(0) if regression else blobs(0)
    outputs = 1 if regression else 3
    fields = ("mean", "upper", "epistemic") if regression else ("probs", "epistemic")
    plain = getattr(kind(epochs=2), way)(network(outputs), data, base_epochs=3, progress=False)
    named = getattr(kind(epochs=2, output_key="prediction"), way)(
        Named(network(outputs)), data, base_epochs=3, progress=False
    )
    for field in fields:
        torch.testing.assert_close(getattr(named(data[0]), field), getattr(plain(data[0]), field))


@ways
def test_a_loss_of_ones_own_is_used(way):
    """Under absolute loss a constant network finds the median, not the mean."""
    y = torch.empty(600, 1).exponential_(generator=torch.Generator().manual_seed(0))
    model = nn.Linear(1, 1)
    method = sp.SplitPointRegressor(epochs=1, folds=0)
    uq = getattr(method, way)(
        model, (torch.zeros(600, 1), y), loss=F.l1_loss, base_epochs=200, base_learning_rate=0.03, progress=False
    )
    mean = float(uq(torch.zeros(1, 1)).mean)
    assert math.isclose(mean, float(y.median()), abs_tol=0.1)
    assert abs(mean - float(y.mean())) > 0.15


@ways
def test_missing_targets_do_not_count(way):
    x, y = sine(0, 400)
    y[::3] = torch.nan
    y[256:] = torch.nan  # a whole second batch
    model = network(1)
    uq = getattr(sp.SplitPointRegressor(epochs=1, folds=0), way)(model, (x, y), base_epochs=5, progress=False)
    assert all(p.isfinite().all() for p in model.parameters())
    assert uq(x).upper.isfinite().all()


@ways
@pytest.mark.parametrize("mars", ["simplex", "free"])
def test_ignored_labels_do_not_count(way, mars):
    x, y = blobs(0, 400)
    y[::3] = -100
    y[256:] = -100
    model = network(3)
    method = sp.SplitPointClassifier(epochs=1, mars=mars)
    uq = getattr(method, way)(model, (x, y), base_epochs=5, progress=False)
    assert all(p.isfinite().all() for p in model.parameters())
    assert uq(x).epistemic.isfinite().all()


class SqueezedMap(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 1)

    def forward(self, x):
        return self.conv(x).squeeze(1)


class SqueezedLogit(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x).squeeze(1)


DENSE = {
    "sequence": (lambda: nn.Linear(3, 4), (200, 6, 3), lambda x: x.sum(2).sign().add(1).long()),
    "sequence as long as there are classes": (
        lambda: nn.Linear(3, 4),
        (200, 4, 3),
        lambda x: x.sum(2).sign().add(1).long(),
    ),
    "map": (lambda: nn.Conv2d(3, 4, 1), (60, 3, 4, 5), lambda x: x.sum(1).sign().add(1).long()),
    "one-logit map": (lambda: nn.Conv2d(3, 1, 1), (60, 3, 4, 5), lambda x: (x.sum(1, keepdim=True) > 0).long()),
    "squeezed one-logit map": (SqueezedMap, (60, 3, 4, 5), lambda x: (x.sum(1) > 0).long()),
    "one logit": (lambda: nn.Linear(3, 1), (300, 3), lambda x: (x.sum(1, keepdim=True) > 0).long()),
    "squeezed one logit": (SqueezedLogit, (300, 3), lambda x: (x.sum(1) > 0).long()),
}


@ways
@pytest.mark.parametrize("shape", DENSE)
def test_classifiers_of_every_shape_learn_with_the_default_loss(way, shape):
    make, size, labels = DENSE[shape]
    x = drawn(0, *size)
    y = labels(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
    uq = getattr(sp.SplitPointClassifier(epochs=1), way)(
        model, (x, y), base_epochs=40, base_learning_rate=0.05, progress=False
    )
    label = uq(x).label
    assert float((label == y.reshape(label.shape)).double().mean()) > 0.9


# Heads on maps


class Counted:
    """Counts the steps of the optimiser."""

    def __init__(self, monkeypatch):
        self.steps, original = 0, training.Adam.step

        def step(optimiser, rate):
            self.steps += 1
            original(optimiser, rate)

        monkeypatch.setattr(training.Adam, "step", step)


def maps(channels=20, count=6):
    x = drawn(0, count, channels, 8, 8)
    return nn.Conv2d(channels, 1, 1), (x, x[:, :1] + drawn(1, count, 1, 8, 8))


@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_the_papers_training_on_maps_is_bounded_by_its_number_of_steps(kind, monkeypatch):
    assert kind.paper().dense_steps == 60_000
    model, (x, y) = maps()
    if kind is sp.SplitPointClassifier:
        model, y = nn.Conv2d(20, 2, 1), (y[:, 0] > 0).long()
    counted = Counted(monkeypatch)
    kind.paper(dense_steps=15).fit(model, (x, y), progress=False)
    assert counted.steps == {sp.SplitPointRegressor: 12, sp.SplitPointClassifier: 15}[kind]  # passes of 6 and of 3


def test_one_pass_is_made_in_any_case_and_rows_that_are_no_maps_are_not_bounded(monkeypatch):
    model, data = maps()
    counted = Counted(monkeypatch)
    sp.SplitPointRegressor.paper(dense_steps=1).fit(model, data, progress=False)
    assert counted.steps == 6
    x = drawn(0, 100, 3)
    sp.SplitPointRegressor.paper(dense_steps=1, epochs=5).fit(nn.Linear(3, 1), (x, x[:, :1]), progress=False)
    assert counted.steps == 6 + 5 * 2


def test_hidden_layers_on_maps_are_half_as_wide_unless_there_is_no_limit():
    model, data = maps(40)
    for method, units in (
        (sp.SplitPointRegressor(epochs=1, folds=0), 20),
        (sp.SplitPointRegressor(epochs=1, folds=0, width=18), 18),
        (sp.SplitPointRegressor(epochs=1, folds=0, width=None), 40),
        (sp.SplitPointRegressor.paper(epochs=1), 40),
    ):
        heads = method.fit(model, data, progress=False).heads
        assert {heads.trunk(name).weights[0].shape[2] for name in heads.trunks} == {units}


def test_no_steps_are_refused():
    with pytest.raises(sp.SettingsError, match="Expected dense_steps >= 1 or None, but got 0"):
        sp.SplitPointRegressor(dense_steps=0)
