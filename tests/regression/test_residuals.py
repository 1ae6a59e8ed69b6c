"""Residuals that heads learn from: when copies are trained, on which data, and what is said where they are not."""

import copy
import threading
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from feature_models import Net, assert_untouched, snapshot
from refusals import refused
from splitpoint.checks import Check
from splitpoint.memorisation import NAME, memorised_check
from splitpoint.method import GivenRows
from splitpoint.metrics import picp
from splitpoint.networks import NetworkTraining, copies, refit
from splitpoint.networks.copies import multiplications
from splitpoint.regression import residuals
from splitpoint.regression.residuals import Chooser

AWAY = 100.0

LARGE = "(The network and its data are large: residuals='refit' takes its time)."


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def built(factory, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory().eval()


def mlp(width=32):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def trained(model, x, y, steps=300):
    """Plain Adam on all rows at once."""
    optimiser = torch.optim.Adam([own for own in model.parameters() if own.requires_grad], 1e-2)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        (model(x).reshape(y.shape) - y).square().nanmean().backward()
        optimiser.step()
    optimiser.zero_grad()
    return model.eval()


def noisy(rows=60, seed=0):
    x = drawn(seed, rows, 3)
    return x, x[:, :1].sin() + 0.5 * drawn(seed + 1, rows, 1)


@pytest.fixture
def short(monkeypatch):
    """Copies that are trained for three passes, whatever they come to."""
    monkeypatch.setattr(refit, "MOST_EPOCHS", 3)


@cache
def memoriser(seed=0):
    return trained(built(mlp, seed), *noisy(seed=seed), steps=150)


@cache
def sound():
    """A network that knows the law of its rows, and has few parameters for them."""
    x, y = noisy(400)
    return trained(built(lambda: mlp(2)), x, y, 100), x, y


def choose(models, data, kind="refit", retrain=None, *, calibrated=False, seeds=None, **settings):
    """What heads learn from, for several networks."""
    method = sp.SplitPointRegressor(residuals=kind, retrain=retrain, **settings)
    rows = [method.record(model, part, progress=False) for model, part in zip(models, data, strict=True)]
    given = GivenRows(rows, rows if calibrated else None, seeds or range(len(rows)), False, data)
    return Chooser(kind, retrain, method._source()).learned(given)


def choose_one(model, data, *args, seed=0, **settings):
    return choose([model], [data], *args, seeds=[seed], **settings)[0]


class Lookup(nn.Module):
    """The targets of the rows that it was given, and far less for others."""

    def __init__(self, x, y):
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("y", y.reshape(len(y), 1))

    def forward(self, x):
        same = (x[:, None] == self.x[None]).all(2)
        return torch.where(same.any(1, keepdim=True), self.y[same.int().argmax(1)], -AWAY)


def look_up(network, data):
    return Lookup(*data)


class Spy:
    """A retrain that counts its calls and does little."""

    def __init__(self):
        self.calls = 0

    def __call__(self, network, data):
        self.calls += 1
        return network


def of_targets(found):
    """Targets of the recorded rows."""
    rows = found.recording.table.whole()
    return rows["output"] + rows["residual"]


# When copies are trained


def test_auto_refits_a_network_that_memorised_its_rows_and_says_so():
    data = noisy()
    auto, asked = (choose_one(memoriser(), data, kind) for kind in ("auto", "refit"))
    assert torch.equal(auto.residual, asked.residual)
    (check,) = auto.checks
    assert (check.name, check.verdict) == (NAME, "ok")
    assert check.value > 0.5
    assert check.advice.endswith("so the heads learned from copies that left them out.")
    assert asked.checks == ()


def test_copies_that_came_less_far_are_mentioned(short):
    (check,) = choose_one(memoriser(), noisy(), "auto").checks
    assert check.verdict == "ok"
    assert check.advice.endswith("left them out, 5 of 5 of which do not fit theirs as well as the network does.")


@pytest.mark.parametrize(
    ("residuals", "calibrated", "verdicts"),
    [("loo", False, ["warn"]), ("train", False, ["warn"]), ("auto", True, []), ("loo", True, [])],
)
def test_copies_are_not_trained_where_nobody_asks_for_them(residuals, calibrated, verdicts):
    found = choose_one(memoriser(), noisy(), residuals, calibrated=calibrated)
    assert found.residual is None
    assert [check.verdict for check in found.checks] == verdicts


@pytest.mark.parametrize("residuals", ["loo", "train"])
def test_a_function_that_trains_copies_is_refused_where_none_are_trained(residuals):
    with pytest.raises(sp.SettingsError, match=f"with retrain=, but got '{residuals}', for which no copies are"):
        sp.SplitPointRegressor(residuals=residuals, retrain=Spy())
    with pytest.raises(sp.SettingsError, match="Expected residuals='refit' with retrain="):
        sp.SplitPointClassifier(retrain=Spy())
    with pytest.raises(sp.SettingsError, match="Expected retrain to be a function of a network and rows, but got int"):
        sp.SplitPointRegressor(residuals="refit", retrain=3)


def test_a_network_that_memorised_nothing_is_not_refitted_unasked():
    model, x, y = sound()
    spy = Spy()
    found = choose_one(model, (x, y), "auto", spy)
    assert spy.calls == 0
    assert found.residual is None
    assert [check.verdict for check in found.checks] == ["ok"]


def test_copies_clear_a_network_that_only_looked_as_if_it_had_memorised(monkeypatch):
    model, x, y = sound()
    monkeypatch.setattr(residuals, "memorised", lambda *_: memorised_check(1.5, 1.2))
    found = choose_one(model, (x, y), "auto")
    assert (found.residual, found.moved, found.blind) == (None, False, False)
    (check,) = found.checks
    left_out = choose_one(model, (x, y), "refit").residual
    own = y - model(x).detach()
    assert check == Check(
        NAME, check.value, "ok", "times the training error at rows that copies of the network left out."
    )
    assert check.value == pytest.approx(float(left_out.abs().mean() / own.abs().mean()), rel=1e-5)
    assert 0.95 < check.value <= residuals.SOBER
    monkeypatch.setattr(residuals, "SOBER", 0.9)
    assert choose_one(model, (x, y), "auto").residual is not None


def test_calibration_data_do_not_keep_from_refitting_what_was_asked_for():
    found = choose_one(memoriser(), noisy(), "refit", look_up, calibrated=True)
    torch.testing.assert_close(found.residual, of_targets(found) + AWAY)


@pytest.mark.parametrize("cheap", [False, True])
def test_a_network_that_is_large_for_its_data_is_refitted_only_if_asked(cheap, monkeypatch):
    weights = 3 * 32 + 32 + 32 * 32 + 32 + 32 + 1
    monkeypatch.setattr(residuals, "BUDGET", 5 * 60 * weights * 100 - (not cheap))  # copies, rows and passes
    auto = choose_one(memoriser(), noisy(), "auto", look_up)
    assert (auto.residual is not None) == cheap
    assert (LARGE in auto.checks[0].advice) == (not cheap)
    assert choose_one(memoriser(), noisy(), "refit", look_up).residual is not None


def test_data_are_not_brought_into_memory_for_a_network_that_is_large(monkeypatch):
    monkeypatch.setattr(residuals, "BUDGET", 5 * 60 * 1000 * 100)
    monkeypatch.setattr(copies, "in_memory", lambda *_: pytest.fail("read"))
    assert "large" in choose_one(memoriser(), noisy(), "auto").checks[0].advice


def test_positions_that_a_convolution_runs_at_count_as_work(monkeypatch):
    monkeypatch.setattr(residuals, "BUDGET", 5 * 60 * 500 * 100)
    x = drawn(0, 60, 1, 8, 8)
    y = drawn(1, 60, 1)
    layers = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.AdaptiveMaxPool1d(16), nn.Linear(16, 1)
    model = trained(built(lambda: nn.Sequential(*layers)), x, y, 200)
    assert sum(parameter.numel() for parameter in model.parameters()) < 200
    found = choose_one(model, (x, y), "auto", Spy())
    assert LARGE in found.checks[0].advice


def lstm():
    def run(m, tokens):
        return m.out(m.rnn(m.embedding(tokens))[0][:, -1])

    return Net(run, embedding=nn.Embedding(9, 6), rnn=nn.LSTM(6, 12, batch_first=True), out=nn.Linear(12, 1))


WORK = {
    "linear": (mlp, (3,), 3 * 32 + 32 + 32 * 32 + 32 + 32 + 1),
    "sequence": (lambda: nn.Linear(3, 2), (7, 3), 7 * (3 * 2 + 2)),
    "convolution": (lambda: nn.Conv2d(2, 4, 3), (2, 6, 5), 12 * (9 * 2 * 4 + 4)),
    "run twice": (lambda: Net(lambda m, x: m.last(m.last(x)), last=nn.Linear(3, 3)), (3,), 2 * 12),
}  # fmt: skip


@pytest.mark.parametrize("kind", WORK)
def test_multiplications_are_weights_times_positions(kind):
    factory, shape, expected = WORK[kind]
    model = built(factory)
    before = snapshot(model)
    assert multiplications(model, {0: drawn(0, 12, *shape), 1: drawn(1, 12)}) == expected
    assert_untouched(model, before)


def test_a_recurrent_layer_works_at_every_step_and_a_table_is_looked_up():
    tokens = torch.zeros(4, 5, dtype=torch.int64)
    recurrent = 4 * 12 * (6 + 12 + 2)
    assert multiplications(built(lstm), {0: tokens, 1: drawn(0, 4)}) == 9 * 6 + 5 * recurrent + 12 + 1


# What is refused, and what auto does in its place


class Forgetful(nn.Module):
    """A network that does not initialise all that it holds."""

    def __init__(self):
        super().__init__()
        self.body, self.scale = mlp(), nn.Parameter(torch.ones(3))

    def reset_parameters(self):
        nn.init.ones_(self.body[4].bias)

    def forward(self, x):
        return self.body(x * self.scale)


class Locked(nn.Module):
    """A network that cannot be copied."""

    def __init__(self):
        super().__init__()
        self.body, self.lock = mlp(), threading.Lock()

    def forward(self, x):
        return self.body(x)


class Bare(nn.Module):
    """A network without a layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Parameter(drawn(0, 3, 32)), nn.Parameter(drawn(1, 32, 1))

    def reset_parameters(self):
        nn.init.normal_(self.first)
        nn.init.normal_(self.last)

    def forward(self, x):
        return (x @ self.first).relu() @ self.last


def attentive():
    def run(m, x):
        wide = m.first(x)[:, None]
        return m.last(m.attention(wide, wide, wide)[0][:, 0].relu())

    attention = nn.MultiheadAttention(32, 2, batch_first=True)
    return Net(run, first=nn.Linear(3, 32), attention=attention, last=nn.Linear(32, 1))


def normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 32)), nn.ReLU(), nn.Linear(32, 1))


def to_nan(network, data):
    with torch.no_grad():
        network[4].bias.fill_(torch.nan)
    return network


NETWORKS = {
    "no reset": (attentive, "layers with reset_parameters", "'attention' (MultiheadAttention) has none", "give it one"),
    "parametrised": (normed, "layers with reset_parameters", "(ParametrizationList) has none", "give it one"),
    "forgetful": (Forgetful, "reset_parameters to forget all weights", "'scale' stays", "set it there"),
    "locked": (Locked, "a network that can be copied", "but got TypeError", "pass calibration data"),
}
RETRAINS = {
    "nothing": (
        lambda *_: None,
        sp.SettingsError,
        "retrain to return the trained network",
        "NoneType",
        "return the network.",
    ),
    "nan": (to_nan, sp.DataError, "finite answers of the copies", "NaN or inf", "check retrain="),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_that_cannot_be_reset(kind):
    factory, *parts = NETWORKS[kind]
    model, data = trained(built(factory), *noisy()), noisy()
    with torch.no_grad():
        model(data[0])
    before = snapshot(model) if kind != "locked" else None
    refused(sp.SettingsError, lambda: choose_one(model, data), *parts)
    found = choose_one(model, data, "auto")
    assert before is None or assert_untouched(model, before) is None
    assert found.residual is None
    assert found.checks[0].verdict == "warn"
    assert parts[1] in found.checks[0].advice


@pytest.mark.parametrize("kind", RETRAINS)
def test_retrains_that_go_wrong(kind):
    retrain, error, *parts = RETRAINS[kind]
    refused(error, lambda: choose_one(memoriser(), noisy(), "refit", retrain), *parts)
    found = choose_one(memoriser(), noisy(), "auto", retrain)
    assert found.residual is None
    assert found.checks[0].verdict == "warn"
    assert parts[1] in found.checks[0].advice


def test_a_network_without_layers_is_refitted_by_retrain_alone():
    data = noisy(25)
    model = trained(built(Bare), *data)
    refused(
        sp.SettingsError, lambda: choose_one(model, data, layer=lambda x: x), "Linear or Conv", "none was seen",
        "train them by retrain=",
    )  # fmt: skip
    found = choose_one(model, data, "auto", layer=lambda x: x)
    assert found.residual is None
    assert "none was seen" in found.checks[0].advice
    found = choose_one(model, data, "refit", look_up, layer=lambda x: x)
    torch.testing.assert_close(found.residual, of_targets(found) + AWAY)


def test_copies_that_diverge_leave_auto_with_its_own_residuals(monkeypatch):
    monkeypatch.setattr(refit, "NetworkTraining", lambda: NetworkTraining(learning_rate=1e20, epochs=4))
    refused(
        sp.TrainingError, lambda: choose_one(memoriser(), noisy()), "stay finite", "1, 2, 3, 4, 5 of 5", "learning_rate"
    )
    found = choose_one(memoriser(), noisy(), "auto")
    assert found.residual is None
    assert found.checks[0].verdict == "warn"
    assert "1, 2, 3, 4, 5 of 5 lost its way" in found.checks[0].advice


def test_a_network_that_is_worse_on_its_rows_than_copies_on_others():
    x, y = noisy(100)
    untrained = built(mlp)
    refused(
        sp.DataError, lambda: choose_one(untrained, (x, y + 50)), "err at least as much", "of its error", "train the"
    )


UNREADABLE = {
    "iterator": lambda x, y: iter([(x, y)]),
    "few rows": lambda x, y: (x[:9], y[:9]),
    "few targets": lambda x, y: (x, y.masked_fill(torch.arange(len(y))[:, None] > 8, torch.nan)),
}


@pytest.mark.parametrize("form", UNREADABLE)
def test_data_that_cannot_be_split(form):
    x, y = noisy()
    read, again = UNREADABLE[form](x, y), UNREADABLE[form](x, y)
    method = sp.SplitPointRegressor(residuals="refit")
    rows = method.record(memoriser(), read, progress=False)
    chooser = Chooser("refit", None, method._source())
    refused(
        sp.DataError, lambda: chooser.learned(GivenRows([rows], None, [0], False, [again])), "at least 10 rows",
        "but got fewer, an iterator", "use another residuals=",
    )  # fmt: skip


def test_recorded_rows_alone():
    method = sp.SplitPointRegressor(residuals="refit", epochs=2, folds=0)
    rows = method.record(memoriser(), noisy(), progress=False)
    refused(
        sp.SettingsError,
        lambda: method.fit_rows(rows, progress=False),
        "a network and its data",
        "rows alone",
        "call fit(",
    )
    auto = sp.SplitPointRegressor(epochs=2, folds=0).fit_rows(rows, progress=False)
    assert next(check for check in auto.checks if check.name == NAME).verdict == "unknown"


def test_a_fit_that_cannot_refit_warns_of_the_reason():
    x, y = noisy()
    with pytest.warns(sp.SplitPointWarning) as caught:
        sp.SplitPointRegressor(epochs=2, folds=0, retrain=lambda *_: None).fit(memoriser(), (x, y), progress=False)
    (told,) = [str(warning.message) for warning in caught if NAME in str(warning.message)]
    assert "Expected retrain to return the trained network, but got NoneType; return the network" in told


# Data


class Twice(nn.Module):
    """A network with named inputs."""

    def __init__(self):
        super().__init__()
        self.body = memoriser()

    def forward(self, one, other):
        return self.body(one + 0 * other)


def look_up_named(network, data):
    assert sorted(data) == ["labels", "one", "other"]
    found = Lookup(data["one"], data["labels"])
    return Net(lambda m, **given: m.found(given["one"]), found=found)


def batches(x, y, size=25):
    return [(x[start : start + size], y[start : start + size]) for start in range(0, len(x), size)]


FORMS = {
    "tensors": lambda x, y: (x, y),
    "flat targets": lambda x, y: (x, y[:, 0]),
    "float64 arrays": lambda x, y: (x.double().numpy(), y.double().numpy()),
    "data set": TensorDataset,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), 16),
    "shuffling loader": lambda x, y: DataLoader(
        TensorDataset(x, y), 16, shuffle=True, generator=torch.Generator().manual_seed(0)
    ),
    "batches": batches,
    "missing targets": lambda x, y: (x, y.masked_fill(torch.arange(len(y))[:, None] % 4 == 0, torch.nan)),
}
NAMED = {
    "mapping": lambda x, y: {"one": x, "other": x, "labels": y},
    "batches": lambda x, y: [{"one": one, "other": one, "labels": target} for one, target in batches(x, y)],
}


@pytest.mark.parametrize("residuals", ["auto", "refit"])
@pytest.mark.parametrize("form", FORMS)
def test_every_row_meets_the_residual_of_the_copy_that_left_it_out(form, residuals):
    """Features of the recording, the network's own input, tell which row it is."""
    x, y = noisy()
    found = choose_one(memoriser(), FORMS[form](x, y), residuals, look_up)
    torch.testing.assert_close(found.residual, of_targets(found) + AWAY)
    kept = x[torch.arange(60) % 4 != 0] if form == "missing targets" else x
    assert len(found.residual) == len(kept)
    nearest = torch.cdist(found.recording.table.column("features"), x).argmin(1)
    torch.testing.assert_close(of_targets(found), y[nearest])
    if form != "shuffling loader":
        assert torch.equal(x[nearest], kept)


@pytest.mark.parametrize("form", NAMED)
def test_named_inputs_come_to_retrain_under_their_names(form):
    found = choose_one(Twice(), NAMED[form](*noisy()), "auto", look_up_named)
    torch.testing.assert_close(found.residual, of_targets(found) + AWAY)


def test_rows_on_disk_meet_their_residuals(tmp_path):
    x, y = noisy()
    method = sp.SplitPointRegressor(residuals="refit", retrain=look_up, cache=tmp_path, rows_per_call=16)
    for _ in range(2):
        rows = method.record(memoriser(), (x, y), progress=False)
        given = GivenRows([rows], None, [0], False, [(x, y)])
        (found,) = Chooser("refit", look_up, method._source()).learned(given)
        torch.testing.assert_close(found.residual, y + AWAY)


# Several networks


def test_many_networks_learn_what_each_learns_alone(short):
    sets = [noisy(seed=0), noisy(seed=5), noisy(45, seed=9)]
    models = [memoriser(0), memoriser(5), memoriser(0)]
    together = choose(models, sets, seeds=[3, 4, 5])
    for model, own, seed, many in zip(models, sets, (3, 4, 5), together, strict=True):
        alone = choose_one(model, own, seed=seed)
        torch.testing.assert_close(many.residual, alone.residual, rtol=1e-3, atol=1e-3)


def test_the_seed_of_the_fit_is_that_of_its_copies(short):
    one, again, other = (choose_one(memoriser(), noisy(), seed=seed).residual for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)


class Bent(nn.Module):
    """Networks that look alike and are not."""

    def __init__(self, slope):
        super().__init__()
        self.slope, self.first, self.last = slope, nn.Linear(3, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.first(x).relu() * self.slope)


def test_networks_that_look_alike_but_compute_otherwise_are_not_trained_as_one(short):
    models = [trained(built(lambda slope=slope: Bent(slope)), *noisy()) for slope in (1.0, 30.0)]
    together = choose(models, [noisy(), noisy()], seeds=[0, 0])
    for model, many in zip(models, together, strict=True):
        torch.testing.assert_close(many.residual, choose_one(model, noisy()).residual, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(together[0].residual, together[1].residual, rtol=0.1)


def test_one_network_that_cannot_be_refitted_spoils_no_other():
    sets, calls = [noisy(seed=0), noisy(seed=5)], []

    def retrain(network, data):
        own = Lookup(*data)
        calls.append(network)
        return None if torch.isin(data[0], sets[1][0]).any() else own

    found = choose([memoriser(0), memoriser(5)], sets, "auto", retrain)
    assert len(calls) == 5 + 1 + 5 + 1  # the two of them together, and each alone
    torch.testing.assert_close(found[0].residual, of_targets(found[0]) + AWAY)
    assert [own.checks[0].verdict for own in found] == ["ok", "warn"]
    assert found[1].residual is None


# Whole fits


def fit(data, model=None, **settings):
    method = sp.SplitPointRegressor(0.9, **{"epochs": 2, "folds": 0} | settings)
    return method.fit_many([model or memoriser()], [data], progress=False)[0]


def test_intervals_of_a_memorised_network_cover_new_rows_by_refitted_residuals_alone():
    x, y = noisy()
    fresh, target = noisy(3000, seed=70)
    cover = {
        kind: picp(fit((x, y), residuals=kind, epochs=40, folds=2)(fresh), target) for kind in ("train", "loo", "refit")
    }
    assert cover["train"] < 0.5
    assert cover["loo"] < 0.6
    assert 0.78 < cover["refit"] < 0.99


def test_the_network_stays_as_it_was_and_the_seed_decides(short):
    model, (x, y), found = copy.deepcopy(memoriser()), noisy(), []
    model[0].train()
    model[2].weight.requires_grad_(False)
    before = snapshot(model)
    for state in (1, 2):
        torch.manual_seed(state)
        random = torch.get_rng_state()
        found.append(fit((x, y), model, residuals="auto")(x))
        assert torch.equal(torch.get_rng_state(), random)
        assert_untouched(model, before)
    assert torch.equal(found[0].lowers, found[1].lowers)
    assert torch.equal(found[0].uppers, found[1].uppers)


def test_intervals_are_in_the_units_of_the_targets(short):
    x, y = noisy()
    scaled = copy.deepcopy(memoriser())
    with torch.no_grad():
        scaled[4].weight.mul_(1e6)
        scaled[4].bias.mul_(1e6).add_(1e3)
    one, other = fit((x, y)), fit((x, 1e6 * y + 1e3), scaled)
    ratio = (other.predict(x).uppers - other.predict(x).lowers) / (one.predict(x).uppers - one.predict(x).lowers)
    torch.testing.assert_close(ratio.median(), torch.tensor(1e6), rtol=0.1, atol=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_residuals_on_one_side_alone(sign):
    def retrain(network, data):
        with torch.no_grad():
            network[4].weight.zero_()
            network[4].bias.fill_(-sign * 10)
        return network

    x, y = noisy()
    out = fit((x, y), residuals="refit", retrain=retrain, epochs=20)(x)
    up, down = (out.upper - out.mean).median(), (out.mean - out.lower).median()
    assert all(values.isfinite().all() for values in (out.lower, out.upper, out.epistemic, out.total))
    assert (up if sign > 0 else down) > 5


def test_constant_targets():
    x, y = drawn(0, 60, 3), torch.full((60, 1), 7.0)
    out = fit((x, y), trained(built(mlp), x, y, 200), residuals="refit")(x)
    assert all(values.isfinite().all() for values in (out.lower, out.upper, out.epistemic, out.total))
    assert float((out.upper - out.lower).max()) < 2


# What heads learn from them


def asymmetry(out):
    """How much longer the upper side of an interval is than the lower."""
    return ((out.upper - out.mean) - (out.mean - out.lower)).flatten()


def test_heads_cannot_read_the_residuals_of_copies_off_memorised_features():
    """The features of a network that memorised noise tell its targets; its input does not tell them."""
    x, y = noisy(120)
    model = trained(built(mlp), x, y, 400)
    uq = sp.SplitPointRegressor(0.9, residuals="refit").fit(model, (x, y), progress=False)
    assert uq.layer == "0:input"
    assert uq.widths == (3, 1)
    left_out = choose_one(model, (x, y)).residual.flatten()
    seen = torch.corrcoef(torch.stack([asymmetry(uq(x)), left_out]))[0, 1].nan_to_num(0.0)
    assert float(seen) < 0.5  # features of the last layer give more than 0.9


@pytest.mark.parametrize("calibrated", [False, True])
def test_heads_on_the_input_are_saved_and_loaded(tmp_path, calibrated):
    x, y = noisy(120)
    model = trained(built(mlp), x, y, 200)
    held_out = noisy(80, seed=5) if calibrated else None
    uq = sp.SplitPointRegressor(0.9, residuals="refit", epochs=5).fit(
        model, (x, y), calibration=held_out, progress=False
    )
    uq.save(tmp_path / "uq.safetensors")
    again, fresh = sp.load(tmp_path / "uq.safetensors", model)(drawn(9, 50, 3)), uq(drawn(9, 50, 3))
    for name in ("lower", "upper", "epistemic", "support", "total"):
        assert torch.equal(getattr(again, name), getattr(fresh, name)), name


def test_where_the_input_is_not_read_half_widths_are_constant():
    """Nothing that heads learn from the residuals of copies and memorised features would hold for new rows."""
    x, y = noisy(120)
    model = trained(built(mlp), x, y, 400)
    uq = sp.SplitPointRegressor(0.9, residuals="refit", layer="4:input", widen=False).fit(model, (x, y), progress=False)
    out = uq(drawn(9, 50, 3))
    for side in (out.upper - out.mean, out.mean - out.lower):
        torch.testing.assert_close(side, side[:1].expand_as(side), rtol=1e-4, atol=1e-5)
    new_x, new_y = noisy(4000, seed=7)
    assert picp(uq(new_x), new_y) > 0.82
