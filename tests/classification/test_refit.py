"""Copies that left rows out stand in for calibration data: what they are worth, what they cost, what is refused."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.baselines import METHODS
from splitpoint.calibration import fit_temperature
from splitpoint.checks import Check
from splitpoint.classification.support import Support
from splitpoint.metrics import auroc, ece, nll
from splitpoint.networks.copies import copies_check

REFIT = sp.SplitPointClassifier(residuals="refit", epochs=3)
TRAIN = sp.SplitPointClassifier(epochs=3)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


CENTRES = 1.2 * drawn(99, 3, 8)


def blobs(seed, rows):
    label = torch.randint(3, (rows,), generator=torch.Generator().manual_seed(seed))
    return CENTRES[label] + 1.5 * drawn(seed + 1, rows, 8), label


def network(outputs=3, inputs=8):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(inputs, 48), nn.ReLU(), nn.Linear(48, outputs))


def memorising(model, x, y, steps=400):
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


def quick(copy, part):
    with torch.enable_grad():
        return memorising(copy, *part, steps=30)


def fit(method, model, data, **arguments):
    return method.fit(model, data, **{"progress": False} | arguments)


@pytest.fixture(scope="module")
def trained():
    x, y = blobs(0, 200)
    return memorising(network(), x, y), (x, y)


@pytest.fixture(scope="module")
def refitted(trained):
    return fit(REFIT, *trained)


@pytest.fixture(scope="module")
def fresh_rows():
    return blobs(7, 3000)


# What it is worth


def test_the_network_has_memorised_its_rows(trained, fresh_rows):
    model, (x, y) = trained
    with torch.no_grad():
        assert nll(model(x).softmax(1), y) < 0.01
        assert nll(model(fresh_rows[0]).softmax(1), fresh_rows[1]) > 0.6


def test_probabilities_are_nearly_as_good_as_those_of_calibration_data(trained, refitted, fresh_rows):
    x, y = fresh_rows
    held_out, plain = fit(TRAIN, *trained, calibration=blobs(3, 200))(x), fit(TRAIN, *trained)(x)
    out = refitted(x)
    assert ece(out, y) < 0.05 < 0.09 < ece(plain, y)
    assert nll(out, y) < nll(held_out, y) + 0.07 < 0.6 * nll(plain, y)


def test_the_factor_is_about_that_of_fresh_rows(trained, refitted):
    x, y = blobs(11, 3000)
    with torch.no_grad():
        best = 1 / float(fit_temperature(trained[0](x), y))
    assert 0.7 * best < float(refitted.correction.factor) < 1.4 * best


def test_features_have_no_part_in_the_correction(refitted):
    assert not refitted.correction.weight.any()
    assert not refitted.correction.bias.any()


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_sets_cover_about_what_they_promise(refitted, fresh_rows, score):
    x, y = fresh_rows
    sets = refitted(x).sets(0.9, score)
    assert sets[torch.arange(len(y)), y].float().mean() > 0.85
    if score == "lac":
        assert sets[torch.arange(len(y)), y].float().mean() < 0.95
        assert sets.sum(1).float().mean() < 1.5


def test_there_are_as_many_scores_of_sets_as_rows(refitted):
    assert refitted.set_scores.shape == (3, 200)


def test_evidence_is_measured_as_on_fresh_rows(refitted, trained):
    """Means and deviations of distance and energy are those of rows that the network has not seen."""
    fresh = sp.SplitPointClassifier().record(trained[0], blobs(21, 3000), progress=False).table
    found = refitted.support.evidence(fresh)
    usual, deviation = refitted.support.usual, refitted.support.deviation
    assert ((found.mean(0) - usual).abs() < 0.35 * found.std(0)).all()
    assert ((deviation / found.std(0) > 0.75) & (deviation / found.std(0) < 1.35)).all()


def test_support_tells_far_rows(refitted, fresh_rows):
    assert auroc(refitted(fresh_rows[0]).support, refitted(10 * drawn(5, 500, 8)).support) > 0.97


def test_scales_of_support_can_be_given(trained):
    table = TRAIN.record(*trained, progress=False).table
    evidence = torch.stack(
        [torch.linspace(3, 5, 100), torch.linspace(-9, -1, 100), torch.linspace(0, 2, 100)], 1
    ).double()
    support = Support.fit(table, 3, 1.0, 0.1, evidence=evidence)
    torch.testing.assert_close(support.usual, torch.tensor([4.0, -5.0, 1.0], dtype=torch.float64), rtol=1e-3, atol=0)
    torch.testing.assert_close(support.share(support.weighed(evidence)).mean().item(), 0.1, rtol=1e-6, atol=0)


def test_several_networks_at_once_are_each_as_alone(trained, refitted):
    model, data = trained
    other = blobs(31, 200)
    found = REFIT.fit_many([model, memorising(network(), *other)], [data, other], seeds=[0, 5], progress=False)
    torch.testing.assert_close(found[0].correction.factor, refitted.correction.factor, rtol=0.1, atol=0)
    torch.testing.assert_close(found[0].support.usual, refitted.support.usual, rtol=0.1, atol=0)
    assert 0.05 < float(found[1].correction.factor) < 0.6
    assert not torch.equal(found[0].set_scores, found[1].set_scores)


# What it leaves alone


def test_another_fit_is_the_same_and_leaves_network_and_global_state_as_they_were(trained, refitted):
    model, data = trained
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    again = fit(REFIT, model, data)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, again.own_tensors()[name]) for name, value in refitted.own_tensors().items())


def test_with_calibration_data_no_copy_is_trained(trained):
    def never(_network, _data):
        raise AssertionError("a copy was trained")

    model, data = trained
    held_out = blobs(3, 60)
    found = fit(replace(REFIT, retrain=never), model, data, calibration=held_out)
    plain = fit(TRAIN, model, data, calibration=held_out)
    assert all(torch.equal(value, plain.own_tensors()[name]) for name, value in found.own_tensors().items())
    assert "copies" not in [check.name for check in found.checks]


def test_a_file_gives_the_same_predictor(refitted, trained, tmp_path):
    refitted.save(tmp_path / "uq.safetensors")
    loaded = sp.load(tmp_path / "uq.safetensors", trained[0])
    x = blobs(9, 20)[0]
    one, other = refitted(x), loaded(x)
    assert torch.equal(one.probs, other.probs)
    assert torch.equal(one.support, other.support)
    assert torch.equal(one.sets(0.9), other.sets(0.9))
    assert loaded.method.residuals == "refit"


# Copies by hand, and how far they came


def test_copies_can_be_trained_by_hand(trained):
    model, data = trained
    seen = []

    def retrain(copy, part):
        seen.append(len(part[0]))
        return quick(copy, part)

    uq = fit(replace(REFIT, retrain=retrain), model, data)
    assert seen == [160] * 5
    other = fit(replace(REFIT, retrain=quick), model, data, seed=1)
    assert not torch.equal(other.correction.factor, uq.correction.factor)
    assert uq.checks[0].value == 1.0
    assert 0 < float(uq.correction.factor) < 1


def test_a_fit_says_how_many_copies_came_as_far(refitted):
    first, *others = refitted.checks
    assert (first.name, first.value, first.verdict) == ("copies", 1.0, "ok")
    assert "ranking of errors" in [check.name for check in others]


@pytest.mark.parametrize(("reached", "verdict"), [(0.0, "warn"), (0.4, "warn"), (0.6, "ok"), (1.0, "ok")])
def test_too_few_copies_that_fit_are_a_warning(reached, verdict):
    check = copies_check(reached)
    assert isinstance(check, Check)
    assert check.verdict == verdict
    assert verdict == "ok" or f"only {reached:.0%} of the copies" in check.advice


# Other shapes


def test_label_maps_and_rows_that_do_not_count():
    x = drawn(1, 20, 2, 4, 3)
    y = (x[:, 0] > 0).long()
    y[drawn(2, *y.shape) > 1] = -100
    model = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 1))
    uq = fit(REFIT, memorising(model, x, y, steps=20), (x, y))
    assert uq.set_scores.shape == (3, len(x))  # images are what counts
    assert uq(x).probs.shape == (20, 2, 4, 3)


def test_a_loader_that_shuffles(trained):
    model, (x, y) = trained
    generator = torch.Generator().manual_seed(0)
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, generator=generator)
    uq = fit(replace(REFIT, retrain=quick), model, loader)
    assert 0.05 < float(uq.correction.factor) < 0.6


def test_a_class_that_a_copy_does_not_see(trained):
    x, y = trained[1]
    x, y = x[y < 2][:60], y[y < 2][:60].clone()
    y[0] = 2
    out = fit(REFIT, memorising(network(), x, y, steps=50), (x, y))(x)
    assert out.probs.isfinite().all()
    assert out.support.isfinite().all()


def test_the_entry_of_the_table_takes_the_settings(trained):
    model, data = trained
    ours = fit(replace(REFIT, retrain=quick), model, data)
    found = fit(METHODS["splitpoint"](residuals="refit", retrain=quick, epochs=3), model, data)
    assert torch.equal(found.correction.factor, ours.correction.factor)


@pytest.mark.parametrize("residuals", ["auto", "loo", "train", "refit"])
def test_an_entry_for_either_task_takes_what_one_of_them_has(residuals):
    assert dict(METHODS["splitpoint"](residuals=residuals).settings) == {"residuals": residuals}


# What is refused


def refused(error, wanted, act):
    with pytest.raises(error, match=re.escape(wanted)) as found:
        act()
    text = str(found.value)
    assert text.startswith("Expected ")
    assert "but" in text
    assert text.count(". ") == 0


def test_values_that_are_not_there():
    refused(sp.SettingsError, "'train' or 'refit', but got 'loo'", lambda: sp.SplitPointClassifier(residuals="loo"))
    refused(
        sp.SettingsError,
        "'train' or 'refit', but got 'loo'",
        lambda: METHODS["splitpoint"](task="classification", residuals="loo"),
    )
    refused(
        sp.SettingsError,
        "mars='simplex' with residuals='refit'",
        lambda: sp.SplitPointClassifier(mars="free", residuals="refit"),
    )


def test_recorded_rows_alone(trained):
    rows = REFIT.record(*trained, progress=False)
    refused(sp.SettingsError, "got recorded rows alone", lambda: REFIT.fit_rows(rows, progress=False))


def test_layers_that_cannot_be_reset():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(8))

        def forward(self, x):
            return x + self.shift

    model = nn.Sequential(Shifted(), network())
    refused(sp.SettingsError, "layers with reset_parameters", lambda: fit(REFIT, model, blobs(0, 40)))


def test_a_layer_that_is_a_function(trained):
    model, data = trained
    method = replace(REFIT, layer=lambda x: model[:2](x))
    refused(sp.SettingsError, "got a function as layer=", lambda: fit(method, model, data))


def test_too_few_rows_and_iterators(trained):
    model = trained[0]
    refused(sp.DataError, "at least 10 rows", lambda: fit(REFIT, model, blobs(0, 9)))
    batches = [blobs(seed, 20) for seed in range(3)]
    refused(sp.DataError, "iterator", lambda: fit(REFIT, model, iter(batches)))


def test_something_else_than_a_network_from_retrain(trained):
    method = replace(REFIT, retrain=lambda _network, _data: None)
    refused(sp.SettingsError, "retrain to return the trained network", lambda: fit(method, *trained))
