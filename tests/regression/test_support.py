"""Support of a regressor: the leverage of what all linear layers read, and where it is that of the last one alone."""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint import cache
from splitpoint.batches import Batch
from splitpoint.cache import Table
from splitpoint.calls import WIDEST_CONTEXT
from splitpoint.disk_table import DiskTable
from splitpoint.errors import CacheError, StorageError
from splitpoint.features import open_tap
from splitpoint.metrics import auroc
from splitpoint.recording import Recording
from splitpoint.regression.support import JointLeverage
from splitpoint.tasks import Regression

QUICK = {"epochs": 1, "folds": 0, "residuals": "loo"}
METHOD = sp.SplitPointRegressor(0.9, **QUICK)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Counted(nn.Sequential):
    """A network that counts its passes over more than one row; single rows are those of the memorisation check."""

    calls = 0

    def forward(self, x):
        self.calls += len(x) > 1
        return super().forward(x)


def network(*widths, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return Counted(*layers[:-1])


def data(rows=60, columns=3, seed=1):
    x = drawn(seed, rows, columns)
    return x, x[:, :1].sin() + 0.1 * drawn(seed + 1, rows, 1)


def fit(model, pair, method=METHOD, **more):
    return method.fit(model, pair, progress=False, **more)


def by_hand(known, x):
    """``1/n + z' (Z'Z + I)^-1 z`` of rows standardised by the known ones, by NumPy in float64."""
    known, x = known.double().numpy(), x.double().numpy()
    center, spread = known.mean(0), known.std(0)
    known, x = (known - center) / spread, (x - center) / spread
    inverse = np.linalg.inv(known.T @ known + np.eye(known.shape[1]))
    return 1 / len(known) + np.einsum("ij,jk,ik->i", x, inverse, x)


def read(model, x):
    """What the linear layers of a network read, side by side."""
    parts = []
    for layer in model:
        if isinstance(layer, nn.Linear):
            parts.append(x)
        x = layer(x).detach()
    return torch.cat(parts, 1)


def context_of(model, *args):
    return open_tap(model.eval(), None, Batch(args, {}, None), context=True)[0].context


# The formula


@pytest.mark.parametrize("rows", [60, 8], ids=["more rows than features", "fewer"])
def test_support_is_the_leverage_of_what_all_layers_read(rows):
    model, pair, x = network(3, 6, 5, 1), data(rows), drawn(5, 20, 3)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.bias += 2  # so that no unit is constant
    found = fit(model, pair)(x).support
    assert found.shape == (20, 1)
    np.testing.assert_allclose(found[:, 0], by_hand(read(model, pair[0]), read(model, x)), rtol=1e-3)


def test_every_output_has_the_support_of_its_row():
    x = drawn(1, 60, 3)
    support = fit(network(3, 6, 5, 2), (x, x[:, :2]))(x).support
    assert support.shape == (60, 2)
    assert torch.equal(support[:, 0], support[:, 1])


def test_a_leverage_in_parts_is_that_of_the_whole(tmp_path, monkeypatch):
    rows = {"context": drawn(1, 900, 4) * 50 + 7, "features": drawn(2, 900, 3)}
    disk = DiskTable.open(tmp_path, {})
    disk.start({"columns": {name: (value.shape[1], "float32") for name, value in rows.items()}})
    disk.append(rows, "")
    disk.position = 1
    monkeypatch.setattr(cache, "SLICE_BYTES", 1)
    assert len(list(disk.finish().slices())) == 4
    in_parts, whole = JointLeverage.fit(disk.finish()), JointLeverage.fit(Table.in_memory(rows))
    torch.testing.assert_close(in_parts(**rows), whole(**rows))


@pytest.mark.parametrize("moved", [0.0, 1e-6], ids=["constant", "hardly moved"])
def test_a_feature_that_never_moved_makes_a_row_foreign_where_it_does(moved):
    rows = {"context": drawn(1, 300, 4), "features": drawn(2, 300, 3)}
    rows["context"][:, 2] = 5 + moved * drawn(3, 300)
    leverage = JointLeverage.fit(Table.in_memory(rows))
    known = leverage(**rows)
    assert known.isfinite().all()
    moving = {name: value.clone() for name, value in rows.items()}
    moving["context"][:, 2] += 0.3
    assert leverage(**moving).min() > 10 * known.max()


def test_features_that_are_all_constant_do_no_harm():
    rows = {"context": torch.ones(10, 2), "features": torch.zeros(10, 1)}
    torch.testing.assert_close(JointLeverage.fit(Table.in_memory(rows))(**rows), torch.full((10, 1), 0.1))


def test_units_that_are_dead_give_no_nan():
    model, pair = network(3, 16, 16, 1), data(200)
    with torch.no_grad():
        model[0].bias[:4] = -100
    uq = fit(model, pair)
    assert uq(pair[0]).support.isfinite().all()
    assert uq(drawn(7, 5, 3) * 1e3).support.isfinite().all()
    assert (uq(drawn(7, 5, 3) * 1e3).support > 100 * uq(pair[0]).support.max()).all()


# What it is for


@pytest.fixture(scope="module")
def trained():
    """By number of rows and noise: a trained network of a function of two latent numbers, and its predictor."""
    found = {}
    for rows, noise in ((300, 0.0), (600, 0.0), (1200, 0.0), (2400, 0.0), (600, 1.0)):
        x, y = latent(rows, 1)
        y = y + noise * drawn(9, rows, 1)
        [model] = sp.networks.train_networks(
            [lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))],
            [(x, y)],
            [0],
            sp.networks.NetworkTraining(epochs=30),
            decide=lambda *_: Regression(),
            progress=False,
        )
        found[rows, noise] = model, (x, y)
    return found


def latent(rows, seed):
    """Six inputs that follow two latent numbers closely, and a target of unit size."""
    hidden = drawn(seed, rows, 2)
    x = hidden @ drawn(99, 2, 6) + 0.2 * drawn(seed + 50, rows, 6)
    y = (2 * hidden[:, :1]).sin() + hidden[:, 1:].square()
    return x, (y - y.mean()) / y.std()


def test_foreign_inputs_are_told_better_than_by_the_last_layer(trained):
    model, pair = trained[600, 0.0]
    x = latent(1000, 3)[0]
    generator = torch.Generator().manual_seed(4)
    shuffled = torch.stack([column[torch.randperm(1000, generator=generator)] for column in x.T], 1)
    ours, last = fit(model, pair), fit(model, pair, sp.SplitPointRegressor(0.9, layer="4:input", **QUICK))
    found = {
        name: [auroc(uq(x).support[:, 0], uq(foreign).support[:, 0]) for foreign in (shuffled, 3 * x)]
        for name, uq in (("ours", ours), ("last", last))
    }
    assert found["ours"][0] > found["last"][0] + 0.03
    assert found["ours"][1] > found["last"][1] - 0.01


def test_support_falls_as_rows_grow(trained):
    x = latent(1000, 3)[0]
    medians = [fit(*trained[rows, 0.0])(x).support.median() for rows in (300, 600, 1200, 2400)]
    assert all(more < 0.8 * fewer for fewer, more in pairwise(medians))


def test_noise_of_the_targets_hardly_moves_support(trained):
    x = latent(1000, 3)[0]
    clean, noisy = (fit(*trained[600, noise])(x).support.median() for noise in (0.0, 1.0))
    assert 1 / 1.3 < noisy / clean < 1.3


# What is read


def test_all_that_is_not_support_is_as_with_the_last_layer_alone():
    model, pair, x = network(3, 6, 5, 1), data(), drawn(5, 20, 3)
    ours, last = fit(model, pair)(x), fit(model, pair, sp.SplitPointRegressor(0.9, layer="4:input", **QUICK))(x)
    for name in ("mean", "lowers", "uppers", "aleatoric", "epistemic", "total", "sds", "mar", "mar_up", "mar_down"):
        one, other = getattr(ours, name), getattr(last, name)
        scale = (2 * ours.mar_up * ours.mar_down).amax() if name in ("sds", "epistemic") else other.abs().amax()
        assert (one - other).abs().amax() <= 1e-5 * scale, name  # products of other sizes round otherwise
    assert not torch.equal(ours.support, last.support)


def test_the_model_runs_once_for_a_batch():
    model, (x, y) = network(3, 6, 5, 1), data()
    uq = fit(model, iter([(x[:30], y[:30]), (x[30:], y[30:])]))
    assert model.calls == 2 + 2  # the fingerprint asks twice about made-up rows
    uq(x)
    assert model.calls == 5
    assert uq.tap.context == ("0:input", "2:input")


def test_the_layer_that_is_named_is_the_last_one():
    model, pair = network(3, 6, 5, 1), data()
    uq = fit(model, pair)
    assert uq.layer == sp.layers(model, pair[0]).chosen == "4:input"
    assert "layer: 4:input (its output" in repr(uq)


def test_four_layers_at_most_are_read_from_the_first_to_the_last():
    assert context_of(network(3, *[4] * 9, 1), drawn(1, 5, 3)) == ("0:input", "6:input", "12:input")


def test_fewer_layers_are_read_where_they_are_wide():
    assert context_of(network(3, 1000, 1000, 1), drawn(1, 5, 3)) == ("0:input", "2:input")
    assert context_of(network(48, 1001, 1000, 1), drawn(1, 5, 48)) == ("0:input",)
    assert context_of(network(WIDEST_CONTEXT, 4, 4, 1), drawn(1, 5, WIDEST_CONTEXT)) == ()
    assert context_of(network(3, WIDEST_CONTEXT, 1), drawn(1, 5, 3)) == ()


class Run(nn.Module):
    """A network with layers and a forward pass of its own."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args):
        return self.run(self, *args)


def test_what_several_layers_read_counts_once():
    model = Run(lambda m, x: m.c(m.a(x) * m.b(x)), a=nn.Linear(3, 4), b=nn.Linear(3, 4), c=nn.Linear(4, 1))
    assert context_of(model, drawn(1, 5, 3)) == ("a:input",)


def test_every_call_of_a_shared_layer_counts():
    model = Run(lambda m, x: m.c(m.a(m.a(m.a(x)))), a=nn.Linear(3, 3), c=nn.Linear(3, 1))
    assert context_of(model, drawn(1, 5, 3)) == ("a:input@0", "a:input@1", "a:input")
    x, y = data()
    with torch.no_grad():
        first = model.a(x)
        both = torch.cat([x, first, model.a(first), model.a(model.a(first))], 1)
    np.testing.assert_allclose(fit(model, (x, y))(x).support[:, 0], by_hand(both, both), rtol=1e-2)


def test_what_is_overwritten_afterwards_is_left_out():
    def run(m, x):
        h = m.a(x)
        k = m.b(h)
        h.mul_(0)
        return m.c(k + h)

    model = Run(run, a=nn.Linear(3, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 1))
    assert context_of(model, drawn(1, 5, 3)) == ("a:input",)
    x = drawn(2, 60, 3)
    pair = x, model(x).detach() + drawn(3, 60, 1)
    uq = fit(model, pair, calibration=pair)
    assert uq(drawn(1, 5, 3)).support.isfinite().all()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 1)), (2, 6)),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), (5, 3)),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.Linear(20, 1)), (5, 3)),
        (lambda: nn.Sequential(nn.Tanh(), nn.Linear(3, 1)), (3,)),
    ],
    ids=["convolutions", "tokens", "sequences that are joined", "one layer"],
)
def test_other_networks_have_the_support_of_their_last_layer(model, shape):
    model, x = model(), drawn(1, 40, *shape)
    clean = model(x).detach()
    pair = x, clean + drawn(2, *clean.shape)
    ours = fit(model, pair, calibration=pair)
    last = fit(model, pair, sp.SplitPointRegressor(0.9, layer=ours.layer, **QUICK), calibration=pair)
    assert ours.tap.context == ()
    assert torch.equal(ours(x).support, last(x).support)


@pytest.mark.parametrize("layer", ["4:input", ["2:input", "4:input"], "module", "callable"])
def test_layers_that_are_named_are_the_only_ones(layer):
    model, pair = network(3, 6, 5, 1), data()
    named = {"module": model[2], "callable": lambda x: model[:2](x)}.get(str(layer), layer)
    assert fit(model, pair, sp.SplitPointRegressor(0.9, layer=named, **QUICK)).tap.context == ()


def test_methods_without_leverage_read_no_further_layer():
    model, pair = network(3, 6, 5, 1), data()
    paper = sp.SplitPointRegressor.paper(0.9, epochs=1)
    assert "context" not in paper.record(model, pair, progress=False).table.columns
    rows = METHOD.record(model, pair, progress=False)
    assert paper.fit_rows(rows, progress=False).tap.context == ()
    jointly = METHOD.fit_jointly(network(3, 6, 5, 1), pair, base_epochs=1, progress=False)
    assert jointly.tap.context == ()
    assert torch.equal(jointly(pair[0]).support, jointly(pair[0]).sds)


# Ways to fit and to keep


def test_recorded_rows_teach_the_same_support():
    model, pair, x = network(3, 6, 5, 1), data(), drawn(5, 20, 3)
    held, one = data(50, seed=7), fit(network(3, 6, 5, 1), data(), calibration=data(50, seed=7))
    rows, held = (METHOD.record(model, part, progress=False) for part in (pair, held))
    other = METHOD.fit_rows(rows, calibration=held, progress=False)
    assert torch.equal(one(x).support, other(x).support)
    assert torch.equal(one(x).upper, other(x).upper)


def test_rows_of_the_last_layer_alone_have_its_support():
    model, (x, y) = network(3, 6, 5, 1), data()
    features, outputs = model[:-1](x).detach(), model(x).detach()
    last = fit(model, (x, y), sp.SplitPointRegressor(0.9, layer="4:input", **QUICK))(x).support
    rows = METHOD.fit_rows(Recording.of(Regression(), features, outputs, y), progress=False)
    torch.testing.assert_close(rows.predict_rows(features, outputs).support, last)


def test_rows_need_their_context_where_support_is_that_of_several_layers():
    model, (x, y) = network(3, 6, 5, 1), data()
    recorded = METHOD.record(model, (x, y), progress=False).table.whole()
    features, outputs = recorded["features"], recorded["output"]
    whole = fit(model, (x, y)).set_threshold(x)
    found = whole.predict_rows(features, outputs, recorded["context"])
    torch.testing.assert_close(found.support, whole(x).support)
    assert torch.equal(found.flagged, whole(x).flagged)
    blind = whole.predict_rows(features, outputs)
    assert blind.support.isnan().all()
    assert blind.flagged.all()  # what is not known deserves no trust
    assert torch.equal(blind.upper, found.upper)
    with pytest.raises(sp.DataError, match="without what earlier layers read; give predict_rows their context="):
        whole.set_threshold(blind)


@pytest.mark.parametrize("form", ["arrays", "loader"])
def test_copies_that_left_rows_out_change_nothing_about_support(form):
    model, (x, y) = network(3, 6, 5, 1), data()
    given = (x, y) if form == "arrays" else [(x[:30], y[:30]), (x[30:], y[30:])]
    refit = sp.SplitPointRegressor(0.9, **(QUICK | {"residuals": "refit"}), retrain=lambda own, _: own)
    torch.testing.assert_close(fit(model, given, refit)(x).support, fit(model, (x, y))(x).support)


def test_several_at_once_have_contexts_of_their_own():
    models, sets, x = [network(3, 6, 5, 1), network(3, 7, 5, 1, seed=1)], [data(), data(seed=4)], drawn(5, 20, 3)
    for uq, model, pair in zip(METHOD.fit_many(models, sets, progress=False), models, sets, strict=True):
        torch.testing.assert_close(uq(x).support, fit(model, pair)(x).support)


def test_a_model_that_is_trained_first_has_the_support_of_all_layers():
    model, pair = network(3, 6, 5, 1), data()
    uq = METHOD.fit_stagewise(model, pair, base_epochs=1, progress=False)
    assert torch.equal(uq(pair[0]).support, fit(model, pair)(pair[0]).support)


def test_a_cache_holds_all_layers_and_is_resumed(tmp_path):
    model, (x, y) = network(3, 6, 5, 1), data()
    batches = [(x[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)]
    cached = sp.SplitPointRegressor(0.9, cache=tmp_path, **QUICK)
    fit(model, batches[:1], cached)
    model.calls = 0
    uq = fit(model, batches, cached)
    assert model.calls == 2 + 1 + 2  # those that lack, the first to see that it behaves as it did, the fingerprint's
    assert (tmp_path / "train" / "context.bin").stat().st_size == 60 * (3 + 6) * 4
    assert torch.equal(uq(x).support, fit(model, batches)(x).support)
    assert torch.equal(fit(model, batches, cached)(x).support, uq(x).support)
    assert torch.equal(
        fit(model, batches, sp.SplitPointRegressor.paper(0.9, epochs=1, cache=tmp_path))(x).upper,
        fit(model, batches, sp.SplitPointRegressor.paper(0.9, epochs=1))(x).upper,
    )


def test_a_cache_of_the_last_layer_alone_is_refused(tmp_path):
    model, pair = network(3, 6, 5, 1), data()
    fit(model, pair, sp.SplitPointRegressor.paper(0.9, epochs=1, cache=tmp_path))
    with pytest.raises(CacheError, match="of the same context, but"):
        fit(model, pair, sp.SplitPointRegressor(0.9, cache=tmp_path, **QUICK))


def test_windows_on_disk_are_those_of_what_heads_learn_from(tmp_path):
    rows = {"features": drawn(1, 3, 8), "residual": drawn(2, 3, 1)}
    windows = []
    for name, more in (("less", {}), ("more", {"context": drawn(3, 3, 2000)})):
        disk = DiskTable.open(tmp_path / name, {})
        whole = rows | more
        disk.start({"columns": {key: (value.shape[1], "float32") for key, value in whole.items()}})
        disk.append(whole, "")
        disk.position = 1
        windows.append(disk.finish().window)
    assert windows[0] == windows[1]


def test_support_of_all_layers_is_saved_and_loaded(tmp_path):
    model, pair, x = network(3, 6, 5, 1), data(), drawn(5, 20, 3)
    uq = fit(model, pair).set_threshold(pair[0])
    uq.save(tmp_path / "uq.safetensors")
    again = sp.load(tmp_path / "uq.safetensors", model)
    assert again.tap.context == uq.tap.context
    assert torch.equal(again(x).support, uq(x).support)
    assert torch.equal(again(x).flagged, uq(x).flagged)
    with pytest.raises(StorageError, match="the weights differ"):
        sp.load(tmp_path / "uq.safetensors", network(3, 6, 5, 1, seed=1))


def test_copies_and_pickles_have_the_same_support():
    model, pair, x = network(3, 6, 5, 1), data(), drawn(5, 20, 3)
    uq = fit(model, pair)
    for again in (copy.deepcopy(uq), pickle.loads(pickle.dumps(uq))):
        assert torch.equal(again(x).support, uq(x).support)
        assert again.tap.model is not model
