"""Whether the base model still is the one that a predictor was fitted on, asked of the predictor and by `load`."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp
from problems import POST_HOC, TRAINED, fit, fitted, only, problem
from splitpoint.baselines import NetworkTraining
from splitpoint.errors import StorageError
from splitpoint.recording import Recording
from splitpoint.tasks import Regression
from stored import FAST, Net, assert_same_prediction, classification, labels, regression, saved, task


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Act(nn.Module):
    """A model whose activation is a part of it."""

    def __init__(self, activation=nn.ReLU):
        super().__init__()
        self.hidden, self.act, self.fc = nn.Linear(3, 6), activation(), nn.Linear(6, 1)

    def forward(self, x):
        return self.fc(self.act(self.hidden(x)))


class Around(nn.Module):
    """A wrapper of a user's own, as a LightningModule is one: it holds the network and what it was trained with."""

    def __init__(self, net, scale=1.0):
        super().__init__()
        self.net, self.loss, self.scale = net, nn.MSELoss(), scale

    def forward(self, x):
        return self.net(self.scale * x)


def with_weights(other, model):
    other.load_state_dict(model.state_dict())
    return other


def agreement(model=None):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.fc = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(torch.cat([self.left(x), self.right(-x)], 1))

    method = sp.Agreement(branches={"left": "left", "right": "right"})
    return method.fit(Two() if model is None else model, labels(90), progress=False)


KINDS = {
    "regression": regression,
    "classification": classification,
    "several layers": lambda: regression(layer=["hidden", "fc:input"]),
    "method": lambda: regression(model := Net(), layer=model.encode),
    "agreement": agreement,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_model_is_the_one_of_the_fit_until_it_is_changed(kind):
    uq = KINDS[kind]()
    check = uq.verify()
    assert (check.name, check.verdict, check.value) == ("base model", "ok", 0)
    with torch.no_grad():
        uq.base.fc.bias += 1e-4
    check = uq.verify()
    assert check.verdict == "warn"
    assert "expected the base model as it was at the fit, but the weights differ" in check.advice


@only(POST_HOC + TRAINED)
def test_every_method_knows_its_model(name, own):
    uq = copy.deepcopy(fitted(name, own))
    assert uq.verify().verdict == "ok"
    with torch.no_grad():
        next(uq.base.parameters()).add_(1.0)
    assert uq.verify().verdict == "warn"


def test_a_model_trained_by_fit_is_verified_too(tmp_path):
    uq = fit("ddu", "classes", model=problem("classes").factory, training=NetworkTraining(epochs=2))
    assert uq.verify().verdict == "ok"
    uq.save(tmp_path / "uq")
    assert sp.load(tmp_path / "uq", problem("classes").factory).verify().verdict == "ok"


@pytest.mark.parametrize("start", ["fit", "rows", "jointly"])
def test_an_exchanged_activation_is_seen_however_the_predictor_was_fitted(start):
    method, model = sp.SplitPointRegressor(0.9, **FAST), Act()
    if start == "fit":
        uq = method.fit(model, task(), progress=False)
    elif start == "rows":
        uq = method.fit_rows(method.record(model, task(), progress=False), progress=False)
    else:
        uq = method.fit_jointly(model, task(), base_epochs=1, progress=False)
    assert uq.verify().verdict == "ok"
    model.act = nn.Tanh()
    check = uq.verify()
    assert (check.verdict, check.value > 0.01) == ("warn", True)
    assert "with the same weights its outputs or features are others" in check.advice


def test_a_network_that_is_read_elsewhere_than_it_was_recorded_is_verified_there(tmp_path):
    x = torch.randn(300, 4)
    y = x.sum(1, keepdim=True) + 0.3 * torch.randn(300, 1)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        (net(x) - y).square().mean().backward()
        optimiser.step()
    uq = sp.SplitPointRegressor(0.9, epochs=2).fit(net, (x, y), progress=False)
    assert uq.tap.names == ("0:input",), "of a network that memorised its rows the inputs are read"
    assert uq.verify().verdict == "ok"
    assert sp.load(saved(uq, tmp_path), net).verify().verdict == "ok"
    net[1] = nn.Tanh()
    assert uq.verify().verdict == "warn"


def test_weights_changed_between_recording_and_fit_are_seen():
    method, model = sp.SplitPointRegressor(0.9, **FAST), Act()
    rows = method.record(model, task(), progress=False)
    with torch.no_grad():
        model.hidden.weight.mul_(2)
    assert method.fit_rows(rows, progress=False).verify().verdict == "warn"


def test_a_fit_from_a_warm_cache_knows_its_model(tmp_path):
    model = Act()
    for _ in range(2):
        uq = regression(model, cache=tmp_path / "cache")
        assert uq.verify().verdict == "ok"
    model.act = nn.Tanh()
    assert uq.verify().verdict == "warn"


def test_without_answers_to_compare_with_the_verdict_is_unknown():
    x, y = (part.numpy() for part in task())
    rows = Recording.of(Regression(), x, np.zeros_like(y), y)
    uq = sp.SplitPointRegressor(0.9, **FAST).fit_rows(rows, progress=False)
    assert (uq.verify().verdict, uq.verify().name) == ("unknown", "base model")
    uq = classification()
    uq.fingerprint = None
    assert uq.verify().verdict == "unknown"


# At load


def test_a_file_belongs_to_the_model_of_the_fit_not_to_that_of_the_save(tmp_path):
    uq = regression()
    as_fitted = copy.deepcopy(uq.base)
    with torch.no_grad():
        uq.base.fc.weight.mul_(3)
    path = saved(uq, tmp_path)
    assert sp.load(path, as_fitted).verify().verdict == "ok"
    with pytest.raises(StorageError, match="was fitted on, but the weights differ; load the right weights"):
        sp.load(path, uq.base)


@pytest.mark.parametrize(
    "other", [lambda _: Act(nn.Tanh), lambda model: Around(model, 255.0)], ids=["activation", "scale"]
)
def test_another_behaviour_of_the_same_weights_is_refused_unless_one_insists(other, tmp_path):
    model = Act()
    path = saved(regression(model), tmp_path)
    changed = other(model)
    if not isinstance(changed, Around):
        with_weights(changed, model)
    expected = "was fitted on, but with the same weights its outputs or features are others, by .*; build it as it was"
    with pytest.raises(StorageError, match=expected) as caught:
        sp.load(path, changed)
    assert "\n" not in str(caught.value)
    again = sp.load(path, changed, strict=False)
    assert again.verify().verdict == "warn"
    assert torch.equal(again(torch.ones(2, 3)).mean, changed(torch.ones(2, 3)).detach())


@only(TRAINED)
def test_networks_of_another_behaviour_are_refused(name, own, tmp_path):
    fitted(name, own).save(tmp_path / "uq")

    def other():
        network = problem(own).factory()
        return nn.Sequential(*[nn.Tanh() if isinstance(part, nn.ReLU) else part for part in network])

    with pytest.raises(StorageError, match="but with the same weights its outputs or features are others"):
        sp.load(tmp_path / "uq", other)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("outputs", "width"), [(1, 7), (2, 6), (1, 5)])
def test_what_cannot_work_is_refused_even_if_one_insists(outputs, width, strict, tmp_path):
    path = saved(regression(), tmp_path)
    with pytest.raises(
        StorageError, match=r"was fitted on, but (the weights differ|its outputs or features have another)"
    ):
        sp.load(path, Net(outputs, width), strict=strict)


def test_what_does_not_run_on_such_inputs_is_refused_even_if_one_insists(tmp_path):
    path = saved(regression(), tmp_path)
    other = Net()
    other.hidden = nn.Linear(4, 6)
    with pytest.raises(StorageError, match="it does not run on rows like those of the fit"):
        sp.load(path, other, strict=False)


# Wrappers


class _FabricModule(nn.Module):
    """As Lightning Fabric wraps a network: what runs, and the network as it was."""

    def __init__(self, network):
        super().__init__()
        self._forward_module, self._original_module = network, network

    def forward(self, x):
        return self._forward_module(x)


def compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "distributed": lambda model: nn.parallel.DistributedDataParallel(model),
    "fabric": _FabricModule,
    "own": Around,
    "compiled own": lambda model: compiled(Around(model)),
    "own of compiled": lambda model: Around(compiled(model)),
    "own of own": lambda model: Around(Around(model)),
}
WRAPPED = {"classification": (classification, lambda: Net(3)), "regression": (regression, Net)}


@pytest.fixture(scope="module")
def process_group(tmp_path_factory):
    """One process that is all of a group."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("kind", WRAPPED)
def test_what_was_fitted_on_the_plain_model_loads_on_the_wrapped_one_and_back(kind, name, tmp_path, process_group):
    fit_on, build = WRAPPED[kind]
    model, x = build(), torch.randn(5, 3)
    wrapped = WRAPPERS[name](model)
    plain = fit_on(model)
    torch.manual_seed(3)
    other = fit_on(wrapped)
    assert_same_prediction(plain(x), other(x))
    first, second = saved(plain, tmp_path), tmp_path / "second"
    other.save(second)
    for path, on in ((first, wrapped), (second, model), (first, model), (second, wrapped)):
        again = sp.load(path, on)
        assert again.verify().verdict == "ok"
        assert_same_prediction(again(x), plain(x))
        again.save(tmp_path / "third")
        assert_same_prediction(sp.load(tmp_path / "third", model)(x), plain(x))


def test_a_wrapper_that_changes_the_input_is_refused_both_ways(tmp_path):
    model = Net()
    first = saved(regression(model), tmp_path)
    scaled = Around(model, 255.0)
    regression(scaled).save(tmp_path / "second")
    for path, other in ((first, scaled), (tmp_path / "second", model)):
        with pytest.raises(StorageError, match="with the same weights its outputs or features are others"):
            sp.load(path, other)


def test_the_branches_of_an_agreement_are_found_in_a_wrapper(tmp_path):
    uq = agreement()
    again = sp.load(saved(uq, tmp_path), Around(uq.base))
    assert dict(again.branches.places) == {"left": "net.left", "right": "net.right"}
    x = torch.randn(5, 3)
    torch.testing.assert_close(again(x).conflict, uq(x).conflict, rtol=0, atol=0)
    again.save(tmp_path / "second")
    assert sp.load(tmp_path / "second", uq.base).verify().verdict == "ok"
