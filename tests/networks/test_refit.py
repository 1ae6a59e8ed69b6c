"""Refitting: what copies that left rows out may know, how far they are trained, and which residuals they leave."""

import copy
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import splitpoint as sp
from feature_models import assert_untouched, snapshot
from splitpoint.networks import NetworkTraining
from splitpoint.networks.refit import COPIES, Refit, reset_copy
from splitpoint.networks.training import in_memory, is_repeatable
from splitpoint.recording import Source, record
from splitpoint.tasks import Regression

FAST = NetworkTraining(learning_rate=1e-2, epochs=200)
SHORT = NetworkTraining(learning_rate=1e-2, epochs=3)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def built(factory, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory().eval()


def mlp(inputs=3, outputs=1, width=32, bias=True):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs, bias)
    )


def trained(model, x, y, steps=300):
    """Plain Adam on all rows at once."""
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.train()
        for _ in range(steps):
            optimiser.zero_grad()
            (model(x) - y).square().nanmean().backward()
            optimiser.step()
    optimiser.zero_grad()
    return model.eval()


def noisy(rows=60, seed=0, noise=0.5):
    x = drawn(seed, rows, 3)
    return x, x[:, :1].sin() + noise * drawn(seed + 1, rows, 1)


@cache
def memoriser(steps=300):
    x, y = noisy()
    return trained(built(mlp), x, y, steps), x, y


def source(layer=None, output_key=None, batch_size=256):
    return Source(Regression(), layer, output_key, batch_size, positions=8)


def recorded(model, data, own):
    return record(model, data, own, cache=None, label="", progress=False)


def refit_many(models, data, settings=None, retrain=None, seeds=None, own=None):
    own = own or source()
    arrays = [in_memory(part, model, own.batch_size) for model, part in zip(models, data, strict=True)]
    layouts = [recorded(model, part, own).layout for model, part in zip(models, data, strict=True)]
    return Refit(models, arrays, layouts, own, seeds or range(len(models)), False, [None] * len(models)).run(
        settings, retrain
    )


def refit(model, data, settings=None, retrain=None, seed=0, own=None):
    return refit_many([model], [data], settings, retrain, [seed], own)[0]


def rms(values):
    return float(values.square().nanmean().sqrt())


def training_errors(found, x, y):
    """Mean squared error of every copy on the rows that it saw."""
    with torch.no_grad():
        return [
            float((network(x) - y)[found.fold != number].square().nanmean())
            for number, network in enumerate(found.networks)
        ]


# What a copy may know


class Lookup(nn.Module):
    """The targets of the rows that it was given, and -100 for others."""

    def __init__(self, x, y):
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("y", y)

    def forward(self, x):
        same = (x[:, None] == self.x[None]).all(2)
        return torch.where(same.any(1, keepdim=True), self.y[same.int().argmax(1)], -100.0)


def test_every_row_is_answered_by_the_copy_that_did_not_see_it():
    x, y = noisy(43)
    given = []

    def retrain(network, data):
        given.append(data)
        return Lookup(*data)

    found = refit(built(mlp), (x, y), retrain=retrain, own=source(batch_size=16))
    torch.testing.assert_close(found.rows["residual"], y + 100)
    assert sorted(found.fold.bincount(minlength=COPIES).tolist()) == [8, 8, 9, 9, 9]
    for number, (inputs, targets) in enumerate(given):
        assert torch.equal(inputs, x[found.fold != number])
        assert torch.equal(targets, y[found.fold != number])


@pytest.mark.parametrize("moved", [0, 3])
def test_a_copy_does_not_depend_on_the_targets_that_it_left_out(moved):
    """Their order, that is: mean and deviation of all targets are the unit that every copy learns in."""
    model, x, y = memoriser()
    one = refit(model, (x, y), SHORT)
    places = (one.fold == moved).nonzero().flatten()
    turned = y.clone()
    turned[places] = y[places.roll(1)]
    other = refit(model, (x, turned), SHORT)
    for number, (first, second) in enumerate(zip(one.networks, other.networks, strict=True)):
        same = torch.allclose(first(x), second(x), rtol=1e-3, atol=1e-4)
        assert same == (number == moved)


def test_copies_know_nothing_of_the_weights_of_the_network():
    model, x, y = memoriser()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-2)
    one, two = (refit(own, (x, y), NetworkTraining(epochs=1)) for own in (model, other))
    assert torch.equal(one.rows["residual"], two.rows["residual"])


def test_residuals_of_copies_are_like_those_of_new_rows():
    model, x, y = memoriser()
    fresh, target = noisy(4000, seed=50)
    with torch.no_grad():
        there, here = rms(target - model(fresh)), rms(y - model(x))
    found = rms(refit(model, (x, y)).rows["residual"])
    assert here < 0.15 * there
    assert 0.7 * there < found < 1.3 * there


# How far copies are trained


def test_copies_of_a_network_that_memorised_its_rows_come_as_far():
    model, x, y = memoriser()
    found = refit(model, (x, y), FAST)
    with torch.no_grad():
        goals = [float((model(x) - y)[found.fold != number].square().mean()) for number in range(COPIES)]
    left_out = rms(found.rows["residual"]) ** 2
    assert found.reached == 1
    for own, goal in zip(training_errors(found, x, y), goals, strict=True):
        assert own <= max(goal * 1.01, 0.03 * left_out)


def test_copies_of_a_network_that_is_barely_trained_are_barely_trained():
    model, x, y = memoriser(steps=12)
    found = refit(model, (x, y), NetworkTraining(learning_rate=1e-3))
    goal = rms(y - model(x).detach()) ** 2
    assert found.reached == 1
    assert all(0.6 * goal < own < 1.2 * goal for own in training_errors(found, x, y))


def test_copies_stop_at_a_hundredth_of_the_left_out_error_where_the_network_has_none():
    model, x, _ = memoriser()
    y = model(x).detach()
    found = refit(model, (x, y), NetworkTraining(learning_rate=5e-3))
    assert found.reached == 1
    left_out = rms(found.rows["residual"]) ** 2
    assert all(0 < own < 0.03 * left_out for own in training_errors(found, x, y))


def test_an_outlier_among_the_rows_that_a_copy_left_out_is_no_sign_that_it_memorised():
    x, y = noisy()
    x[7] = 1e4
    model = trained(built(mlp), x, y, 600)
    assert refit(model, (x, y), NetworkTraining(epochs=1)).reached == 0


def test_copies_that_do_not_come_as_far_count_as_such_and_answer_all_the_same():
    model, x, y = memoriser()
    found = refit(model, (x, y), SHORT)
    assert found.reached == 0
    assert found.rows["residual"].isfinite().all()


# Copies that did not learn


def refuses(match, model, data, settings=None, retrain=None, kind=sp.DataError, **changes):
    with pytest.raises(kind, match=match) as caught:
        refit(model, data, settings, retrain, own=source(**changes))
    assert str(caught.value).startswith("Expected ")


@pytest.mark.parametrize(("optimiser", "rate"), [("adam", 1e20), ("sgd", 1e3)])
def test_copies_that_diverge_are_refused(optimiser, rate):
    """One to NaN, the other to errors without bound, on rows seen and left out alike."""
    model, x, y = memoriser()
    settings = NetworkTraining(learning_rate=rate, optimiser=optimiser, epochs=6)
    text = "refitted copy 1, 2, 3, 4, 5 of 5 lost its way"
    refuses(text, model, (x, y), settings, kind=sp.TrainingError)


def test_an_error_without_bound_is_not_small_beside_another():
    """Rows so large that the error of every reset copy overflows, on rows seen and left out, before and after."""
    x, y = noisy()
    model = trained(built(mlp), x, y, 20)
    with torch.no_grad():
        model[0].weight.mul_(1e-25)
    refuses("lost its way", model, (1e25 * x, y), SHORT, kind=sp.TrainingError)


class Guarded(nn.Module):
    """A network that answers NaN for some rows unless a number is positive, which it is not at the start."""

    def __init__(self):
        super().__init__()
        self.body, self.gate = mlp(), nn.Parameter(torch.ones(1))

    def reset_parameters(self):
        nn.init.constant_(self.gate, -1.0)

    def forward(self, x):
        return torch.where((x[:, :1] > 1) & (self.gate < 0), torch.nan, self.body(x))


def test_an_error_of_nan_on_some_rows_does_not_pass_for_a_missing_target():
    x, y = noisy()
    refuses("lost its way", trained(built(Guarded), x, y, 20), (x, y), SHORT, kind=sp.TrainingError)


def test_copies_without_a_gradient_are_refused():
    """Their last activation is at zero for all rows."""

    class Dead(nn.Linear):
        def reset_parameters(self):
            super().reset_parameters()
            nn.init.constant_(self.bias, -3.0)

    x, y = noisy()
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), Dead(8, 1), nn.ReLU())
    with torch.no_grad():
        model[2].bias.fill_(1.0)
    refuses("training error of 5 of 5 did not fall", model, (x, y + 3), SHORT)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_answers_of_retrained_copies_that_are_not_finite_are_refused(wrong):
    def retrain(network, data):
        with torch.no_grad():
            network[4].bias.fill_(wrong)
        return network

    model, x, y = memoriser(2)
    refuses("finite answers of the copies", model, (x, y), retrain=retrain)


@pytest.mark.parametrize("returned", [None, "trained", torch.ones(3)])
def test_a_retrain_that_returns_no_network_is_refused(returned):
    model, x, y = memoriser(2)
    with pytest.raises(sp.SettingsError, match=f"but got {type(returned).__name__}; return the network"):
        refit(model, (x, y), retrain=lambda *_: returned)


def test_too_few_rows_are_refused():
    x, y = noisy(9)
    refuses("at least 10 rows .* but got 9; use another residuals=", built(mlp), (x, y))


class Plain(nn.Module):
    """A network without layers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Parameter(torch.ones(3, 8)), nn.Parameter(torch.ones(8, 1))

    def reset_parameters(self):
        nn.init.normal_(self.first)
        nn.init.normal_(self.last)

    def forward(self, x):
        return (x @ self.first).tanh() @ self.last


def test_a_network_without_a_layer_that_we_know_needs_retrain():
    x, y = noisy()
    model, own = Plain(), source(layer=lambda x: x)
    with pytest.raises(sp.SettingsError, match=r"none was seen; train them by retrain="):
        refit(model, (x, y), own=own)
    found = refit(model, (x, y), retrain=lambda network, data: trained(network, *data, steps=50), own=own)
    assert rms(found.rows["residual"]) < 1.1 * rms(y)


# What is left as it was


def fragile():
    """Dropout, batch norm, hooks, frozen parts, gradients and modes of every kind."""
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
    model[0].weight.requires_grad_(False)
    model[1].running_mean.fill_(0.3)
    model[4].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("retrain", [None, lambda network, data: trained(network, *data, steps=3)])
def test_the_network_and_the_random_state_stay_as_they_were(retrain):
    x, y = noisy()
    model = built(fragile)
    model[1].train()
    model[4].weight.grad = torch.ones(1, 8)
    before = snapshot(model)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    refit(model, (x, y), SHORT, retrain)
    assert torch.equal(torch.get_rng_state(), state)
    assert_untouched(model, before)


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_seed_alone_decides_the_copies(by_hand):
    def retrain(network, data):
        with torch.no_grad():
            network[4].bias.add_(torch.randn(1))
        return network

    model, (x, y), found = built(fragile), noisy(), []
    for state, seed in ((1, 4), (2, 4), (1, 5)):
        torch.manual_seed(state)
        found.append(refit(model, (x, y), SHORT, retrain if by_hand else None, seed))
    one, again, other = (own.rows["residual"] for own in found)
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert torch.equal(found[0].fold, found[1].fold)
    assert not torch.equal(found[0].fold, found[2].fold)


def test_many_networks_at_once_are_each_alone():
    sets = [noisy(seed=0), noisy(seed=7)]
    models = [trained(built(mlp, seed), *own, steps=12) for seed, own in enumerate(sets)]
    settings = NetworkTraining(learning_rate=1e-3, epochs=20)
    together = refit_many(models, sets, settings, seeds=[3, 9])
    for model, own, seed, many in zip(models, sets, (3, 9), together, strict=True):
        alone = refit(model, own, settings, seed=seed)
        assert torch.equal(many.fold, alone.fold)
        assert many.reached == alone.reached
        torch.testing.assert_close(many.rows["residual"], alone.rows["residual"], rtol=1e-3, atol=1e-3)


# Reset copies


def test_every_layer_of_a_frozen_network_is_initialised_anew_and_learns():
    model = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))).requires_grad_(False)
    model[1].running_mean.fill_(7.0)
    copied = reset_copy(model, 1)
    assert not torch.equal(copied[0].weight, model[0].weight)
    assert not copied[1].running_mean.any()
    assert all(parameter.requires_grad for parameter in copied.parameters())


def test_layers_that_are_frozen_beside_others_stay_as_they_are():
    model = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 1)))
    model[:2].requires_grad_(False)
    model[1].running_mean.fill_(7.0)
    copied = reset_copy(model, 1)
    for name in ("0.weight", "0.bias", "1.running_mean"):
        assert torch.equal(copied.state_dict()[name], model.state_dict()[name])
    assert not torch.equal(copied[2].weight, model[2].weight)
    assert [parameter.requires_grad for parameter in copied.parameters()] == [False] * 4 + [True] * 4
    x, y = noisy()
    found = refit(model, (x, y), SHORT)
    assert all(torch.equal(own.network[0].weight, model[0].weight) for own in found.networks)


# Shapes, units and kinds of networks


class Net(nn.Module):
    """Layers by name, and what they do."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x).tanh())


SCALE = torch.tensor([1.0, 100.0])


def convolutions(last):
    return lambda: nn.Sequential(nn.Conv1d(3, 16, 3, padding=1), nn.ReLU(), last())


def lstm():
    def run(m, tokens):
        return m.out(m.rnn(m.embedding(tokens))[0][:, -1])

    return Net(run, embedding=nn.Embedding(9, 6), rnn=nn.LSTM(6, 12, batch_first=True), out=nn.Linear(12, 1))


def turned():
    """Numbers of the last layer in another order than the outputs."""
    return Net(lambda m, x: m.last(m.first(x).relu()).view(-1, 3, 2).mT, first=nn.Linear(3, 32), last=nn.Linear(32, 6))


def pooled():
    return nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))


def squeezed(axis, body):
    return lambda: Net(lambda m, x: m.body(x).squeeze(axis), body=body())


def map_network():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))


def enlarging():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 1), nn.PixelShuffle(2))


def bounded():
    return Net(lambda m, x: 100 * m.body(x).sigmoid(), body=mlp())


TOKENS = torch.randint(9, (40, 5), generator=torch.Generator().manual_seed(0))
ROWS, SEQUENCES, MAPS = drawn(0, 40, 3), drawn(1, 40, 3, 6), drawn(2, 40, 1, 4, 4)
HOLES = drawn(3, 40, 2) > 0.3
PAIR = SCALE * ROWS[:, :2] + 5
KINDS = {
    "(N,)": (squeezed(-1, mlp), ROWS, ROWS[:, 0]),
    "(N, 1) and targets (N,)": (mlp, ROWS, ROWS[:, 0]),
    "(N,) and targets (N, 1)": (squeezed(-1, mlp), ROWS, ROWS[:, :1]),
    "(N, 2)": (lambda: mlp(outputs=2), ROWS, PAIR),
    "(N, 2, T)": (convolutions(lambda: nn.Conv1d(16, 2, 1)), SEQUENCES, SCALE[:, None] * SEQUENCES[:, :2] + 5),
    "(N, T, 2)": (lambda: mlp(outputs=2), SEQUENCES.mT, (SCALE[:, None] * SEQUENCES[:, :2] + 5).mT),
    "(N, H, W)": (squeezed(1, map_network), MAPS, 30 + MAPS[:, 0]),
    "missing targets": (lambda: mlp(outputs=2), ROWS, PAIR.masked_fill(HOLES, torch.nan)),
    "float64": (lambda: mlp().double(), ROWS.double(), 1e6 * ROWS[:, :1].double() + 1e3),
    "no bias": (lambda: mlp(bias=False), ROWS, 100 * ROWS[:, :1]),
    "batch norm and dropout": (pooled, ROWS, ROWS[:, :1]),
    "tied weights": (Tied, ROWS, 20 + 5 * ROWS),
    "tokens": (lstm, TOKENS, 10.0 + (TOKENS == 3).sum(1, keepdim=True)),
    "bounded": (bounded, ROWS, 100 * ROWS[:, :1].sigmoid()),
    "turned": (turned, ROWS, (ROWS[:, :2, None] + ROWS[:, 2:, None]) * torch.tensor([1.0, 10.0, 100.0])),
    "transposed": (convolutions(lambda: nn.ConvTranspose1d(16, 2, 1)), SEQUENCES, SCALE[:, None] * SEQUENCES[:, :2]),
    "enlarging": (enlarging, MAPS, 50 + MAPS.repeat_interleave(2, 2).repeat_interleave(2, 3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_recording_and_copies_learn_in_the_units_of_the_targets(kind, monkeypatch):
    factory, x, y = KINDS[kind]
    model, own = built(factory), source(batch_size=16)
    monkeypatch.setattr(Refit, "_errors", lambda *_: torch.zeros(len(x)))  # a goal that none reaches at once
    recording = recorded(model, (x, y), own)
    found = refit(model, (x, y), NetworkTraining(learning_rate=1e-2, epochs=60), own=own)
    target, again = (
        rows["output"].double() + rows["residual"].double() for rows in (recording.table.whole(), found.rows)
    )
    torch.testing.assert_close(again, target, rtol=1e-5, atol=1e-3, equal_nan=True)
    for number, network in enumerate(found.networks):
        assert not network.training
        with torch.no_grad():
            answers = network(x).reshape(y.shape)[found.fold != number]
        seen = y[found.fold != number]
        constant = (seen - seen.nanmean(0)).square().nanmean(0)
        assert float(((answers - seen).square().nanmean(0) / constant).nanmean()) < 0.5


def test_units_of_a_power_of_two_change_nothing_but_the_scale():
    model, x, y = memoriser()
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        scaled[4].weight.mul_(2.0**20)
        scaled[4].bias.mul_(2.0**20)
    one, other = refit(model, (x, y), SHORT), refit(scaled, (x, 2.0**20 * y), SHORT)
    torch.testing.assert_close(other.rows["residual"], 2.0**20 * one.rows["residual"], rtol=1e-5, atol=0.1)


def test_copies_without_a_bias_know_no_centre_either():
    x, y = noisy(200)
    model = nn.Linear(3, 1, bias=False)
    residual = refit(model, (x, y + 50), NetworkTraining(learning_rate=1e-2, epochs=5)).rows["residual"]
    assert 49 < float(residual.mean()) < 51


@pytest.mark.parametrize("inplace", [False, True])
def test_an_activation_at_the_end_is_seen_even_where_it_lets_all_numbers_pass_at_first(inplace):
    class Lifted(nn.Linear):
        def reset_parameters(self):
            super().reset_parameters()
            nn.init.constant_(self.bias, 5.0)

    x = drawn(0, 60, 3)
    y = 5 + x[:, :1]
    model = trained(
        built(lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), Lifted(16, 1), nn.ReLU(inplace))), x, y, 100
    )
    assert refit(model, (x, y), FAST).reached == 1


def test_an_entry_of_several_outputs_is_read_by_its_name():
    x, y = noisy()
    model = built(lambda: Net(lambda m, x: {"mean": m.body(x), "other": x}, body=mlp()))
    found = refit(model, (x, y), SHORT, own=source(output_key="mean"))
    plain = refit(model.body, (x, y), SHORT)
    torch.testing.assert_close(found.rows["residual"], plain.rows["residual"], rtol=1e-4, atol=1e-4)


def test_duplicated_rows_count_as_rows():
    x, y = noisy(20)
    found = refit(built(mlp), (x.repeat(3, 1), y.repeat(3, 1)), SHORT)
    assert len(found.rows["residual"]) == 60


# Data in memory


class Mapped(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


X, Y = noisy(23)
BATCHES = [(X[start : start + 10], Y[start : start + 10]) for start in (0, 10, 20)]
FORMS = {
    "tensors": (X, Y),
    "float64 arrays": (X.double().numpy(), Y.double().numpy()),
    "tensor data set": TensorDataset(X, Y),
    "data set": Mapped(X, Y),
    "data set of numpy": Mapped(X.numpy(), Y.double().numpy()),
    "loader": DataLoader(TensorDataset(X, Y), 10),
    "batches": BATCHES,
}
NAMED = {
    "mapping": {"x": X, "labels": Y},
    "batches": [{"x": x, "labels": y} for x, y in BATCHES],
}


@pytest.mark.parametrize("form", FORMS)
def test_data_in_every_form_are_the_same_columns(form):
    columns = in_memory(FORMS[form], built(mlp), 4)
    assert list(columns) == [0, 1]
    torch.testing.assert_close(columns[0], X)
    torch.testing.assert_close(columns[1], Y, check_dtype=False)
    assert is_repeatable(FORMS[form]) == (form in ("tensors", "float64 arrays", "tensor data set"))


@pytest.mark.parametrize("form", NAMED)
def test_named_columns_keep_their_names(form):
    columns = in_memory(NAMED[form], built(mlp), 4)
    assert torch.equal(columns["x"], X)
    assert torch.equal(columns["labels"], Y)


def test_a_shuffling_loader_is_read_once():
    loader = DataLoader(TensorDataset(X, Y), 10, shuffle=True, generator=torch.Generator().manual_seed(0))
    columns = in_memory(loader, built(mlp), 4)
    assert not torch.equal(columns[0], X)
    order = [int((row == X).all(1).nonzero()) for row in columns[0]]
    assert sorted(order) == list(range(23))
    assert torch.equal(columns[1], Y[order])


UNREADABLE = {
    "iterator": lambda: iter(BATCHES),
    "rows of several lengths": lambda: [(drawn(0, 10, length), drawn(1, 10, 1)) for length in (3, 4)],
    "inputs that are no tensors": lambda: [(["text"] * len(y), y) for _, y in BATCHES],
    "time on the first axis": lambda: [(drawn(0, 6, 10, 3), drawn(1, 10, 1))],
    "names that change": lambda: [{"x": X, "labels": Y}, {"x": X, "mask": X, "labels": Y}],
    "nothing": lambda: DataLoader(TensorDataset(X[:0], Y[:0])),
    "numbers": lambda: {"x": X, "rate": 3.0, "labels": Y},
}


@pytest.mark.parametrize("form", UNREADABLE)
def test_data_that_are_no_columns(form):
    assert in_memory(UNREADABLE[form](), built(mlp), 4) is None


def test_nested_inputs_are_columns_of_their_own():
    columns = in_memory([((x, {"more": x + 1}), y) for x, y in BATCHES], built(mlp), 4)
    assert list(columns) == [(0, 0), (0, 1, "more"), 1]
    assert torch.equal(columns[0, 1, "more"], columns[0, 0] + 1)
