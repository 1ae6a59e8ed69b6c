"""How trials are set up. Tests of real sets are skipped where SPLITPOINT_DATA does not name them."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from splitpoint.bench.protocols import NOISES, PROTOCOLS, Budget
from splitpoint.datasets import TABLES, Tabular
from splitpoint.datasets.entry import find
from splitpoint.errors import DataError, SettingsError
from splitpoint.metrics import Evidence, measured
from splitpoint.prediction import RegressionPrediction

PAPER, AUTHORS = PROTOCOLS["paper"], PROTOCOLS["authors"]
EIGHT_TO_TWO = {"boston", "wine"}


def synthetic(rows=1000, name="concrete"):
    """Rows whose first feature is their number, so that they can be told apart after standardisation."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator).double()
    x[:, 0] = torch.arange(rows)
    y = 50 + 8 * torch.randn(rows, 1, generator=generator).double()
    return Tabular(x, y, name, "target")


def real(protocol, name):
    try:
        find(TABLES[name].path)
    except DataError:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {TABLES[name].path}")
    return protocol.table(name)


every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))
every_noise = pytest.mark.parametrize("noise", NOISES)


def shares(protocol, name):
    return 0.2 if protocol is AUTHORS and name in EIGHT_TO_TWO else 0.1


def check_sizes(protocol, table, noise):
    trial = protocol.trial(table, noise, 3)
    skipped = 1 if protocol is AUTHORS and table.name == "yacht" else 0
    copies = 3 if protocol is AUTHORS and noise != "clean" else 1
    rows = copies * (len(table.X) - skipped)
    assert len(trial.train[0]) == len(trial.train[1]) == round(rows * (1 - shares(protocol, table.name)))
    assert len(trial.train[0]) + len(trial.test[0]) == rows
    assert trial.train[0].dtype == trial.test[1].dtype == torch.float32
    assert trial.train[1].shape[1:] == trial.test[1].shape[1:] == (1,)
    return trial


# Splits


@every_protocol
@every_noise
@pytest.mark.parametrize("name", ["boston", "concrete", "yacht"])
def test_splits_have_the_sizes_of_the_protocol(protocol, noise, name):
    check_sizes(protocol, synthetic(name=name), noise)


@every_protocol
@pytest.mark.parametrize("name", list(TABLES))
def test_splits_of_the_real_sets_have_the_sizes_of_the_protocol(protocol, name):
    check_sizes(protocol, real(protocol, name), "clean")


@every_protocol
def test_training_and_test_rows_are_disjoint_and_together_all(protocol):
    table = synthetic()
    trial = protocol.trial(table, "clean", 5)
    train, test = (set(part[0][:, 0].tolist()) for part in (trial.train, trial.test))
    assert not train & test
    assert len(train | test) == len(table.X)


def test_the_split_is_that_of_numpy():
    """``RandomState(trial).permutation``, cut at nine tenths, as in the published code."""
    table = synthetic(rows=100)
    order = np.random.RandomState(7).permutation(100)
    trial = PAPER.trial(table, "clean", 7)
    assert trial.train[0][:, 0].argsort().argsort().tolist() == torch.tensor(order[:90]).argsort().argsort().tolist()


@every_protocol
@every_noise
def test_statistics_are_those_of_the_training_rows(protocol, noise):
    table = synthetic()
    trial = protocol.trial(table, noise, 1)
    torch.testing.assert_close(trial.train[0].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(trial.train[0].std(0, correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert trial.test[0].mean(0).abs().max() > 1e-4
    if noise == "clean" or protocol.leaks:
        assert abs(float(trial.train[1].mean())) < 1e-5
        assert float(trial.train[1].std(correction=0)) == pytest.approx(1, abs=1e-5)


@every_protocol
@every_noise
def test_a_trial_is_the_same_every_time_and_others_differ(protocol, noise):
    table = synthetic()
    one, again, other = (protocol.trial(table, noise, number) for number in (4, 4, 5))
    for part in ("train", "test", "proper", "calibration"):
        assert all(torch.equal(a, b) for a, b in zip(getattr(one, part), getattr(again, part), strict=True))
    assert not torch.equal(one.train[1], other.train[1])
    assert not torch.equal(one.calibration[0], other.calibration[0])


def test_trials_do_not_touch_the_global_generator():
    before = torch.get_rng_state()
    AUTHORS.trial(synthetic(), "trimodal", 0)
    assert torch.equal(before, torch.get_rng_state())


# Noise as the paper states it


@pytest.mark.parametrize("trial", range(3))
@pytest.mark.parametrize("noise", ["log_normal", "trimodal"])
def test_noise_of_the_paper_is_added_to_standardised_targets(noise, trial):
    """Centred log-normal(1, .5), or 0.3 N(-1,.1) + 0.4 N(0,.1) + 0.3 N(3,.1) less its mean of 0.6."""
    table = synthetic(rows=20_000)
    clean, noisy = PAPER.trial(table, "clean", trial), PAPER.trial(table, noise, trial)
    assert noisy.scale == clean.scale
    variance = math.exp(2 + 0.25) * (math.exp(0.25) - 1)
    if noise == "trimodal":
        variance = 0.3 * 1 + 0.3 * 9 - 0.6**2 + 0.01
    for part in ("train", "test"):
        (x, y), (same, own) = getattr(noisy, part), getattr(clean, part)
        assert torch.equal(x, same)
        added = (y - own).double()
        deviation = math.sqrt(variance)
        assert abs(float(added.mean())) < 5 * deviation / math.sqrt(len(added))
        assert float(added.std()) == pytest.approx(deviation, rel=0.1)
        if noise == "log_normal":
            assert float(added.min()) > -math.exp(1 + 0.125)
        else:
            modes = torch.tensor([-1.6, -0.6, 2.4]).double()
            gaps = (added - modes).abs()
            near = gaps.argmin(1)
            assert float(gaps.amin(1).max()) < 0.6
            counts = torch.bincount(near, minlength=3) / len(near)
            torch.testing.assert_close(counts, torch.tensor([0.3, 0.4, 0.3]), atol=0.05, rtol=0)


@every_noise
def test_no_test_input_of_the_paper_is_in_training(noise):
    trial = PAPER.trial(synthetic(), noise, 2)
    assert not set(trial.train[0][:, 0].tolist()) & set(trial.test[0][:, 0].tolist())


# The published code


def test_the_published_code_has_budgets_of_its_own_for_three_sets():
    own = {name: AUTHORS.budget(name) for name in TABLES if AUTHORS.budget(name) != Budget()}
    assert own == {"naval": Budget(5e-4, 64, 400), "yacht": Budget(1e-4, 16, 400), "energy": Budget(1e-4, 32, 400)}
    assert {PAPER.budget(name) for name in TABLES} == {Budget(1e-4, 64, 400)}


@pytest.mark.parametrize(
    ("name", "first", "second"), [("energy", "heating", "cooling"), ("naval", "compressor", "turbine")]
)
def test_the_published_code_takes_the_second_target(name, first, second):
    assert (real(PAPER, name).target, real(AUTHORS, name).target) == (first, second)
    assert not torch.equal(real(PAPER, name).y, real(AUTHORS, name).y)


def test_the_published_code_leaves_out_the_first_row_of_yacht():
    table = synthetic(rows=200, name="yacht")
    assert [sum(map(len, (t.train[0], t.test[0]))) for t in (p.trial(table, "clean", 0) for p in (PAPER, AUTHORS))] == [
        200, 199,
    ]  # fmt: skip
    changed = dataclasses.replace(table, X=table.X.clone(), y=table.y.clone())
    changed.X[0], changed.y[0] = 1e6, 1e6
    one, other = AUTHORS.trial(table, "clean", 0), AUTHORS.trial(changed, "clean", 0)
    assert torch.equal(one.train[0], other.train[0])
    assert torch.equal(one.test[1], other.test[1])


@pytest.mark.parametrize("noise", ["log_normal", "trimodal"])
def test_noisy_copies_of_the_published_code_put_test_inputs_into_training(noise):
    """Two noisy copies beside the clean rows, made before the split: nearly all test inputs were trained on."""
    table = synthetic()
    trial = AUTHORS.trial(table, noise, 0)
    train, test = (part[0][:, 0].tolist() for part in (trial.train, trial.test))
    assert len(train) + len(test) == 3 * len(table.X)
    assert sum(value in set(train) for value in test) / len(test) == pytest.approx(1 - 0.1**2, abs=0.02)


@pytest.mark.parametrize("noise", ["log_normal", "trimodal"])
def test_noise_of_the_published_code_is_small_and_a_third_of_the_rows_has_none(noise):
    table = synthetic(rows=5000)
    trial = AUTHORS.trial(table, noise, 0)
    x, y = torch.cat([trial.train[0], trial.test[0]]), torch.cat([trial.train[1], trial.test[1]])
    copies = (y[x[:, 0].argsort()] * trial.scale / table.y.std(correction=0)).reshape(5000, 3)
    variance = 0.01 * math.exp(2.25) * (math.exp(0.25) - 1)
    if noise == "trimodal":
        variance = 0.3 * 0.04 + 0.3 * 0.36 - 0.12**2 + 0.3 * 0.05**2 + 0.3 * 0.15**2
    squares = (copies - copies.roll(1, 1)).square().mean()
    assert float(squares) == pytest.approx((1 + 1 + 2) / 3 * variance, rel=0.1)  # 2 if all three had noise


# Calibration rows


@every_protocol
@pytest.mark.parametrize(("rows", "held"), [(200, 80), (1000, 270), (3000, 810)])
def test_calibration_rows_are_three_tenths_of_the_training_rows_or_80(protocol, rows, held):
    trial = protocol.trial(synthetic(rows), "clean", 0)
    assert len(trial.calibration[0]) == len(trial.calibration[1]) == held
    proper, calibration = (set(part[0][:, 0].tolist()) for part in (trial.proper, trial.calibration))
    assert not proper & calibration
    assert proper | calibration == set(trial.train[0][:, 0].tolist())
    assert not calibration & set(trial.test[0][:, 0].tolist())


# Wrong names


def test_an_unknown_noise_lists_those_there_are():
    with pytest.raises(SettingsError, match=r"Expected noise to be one of .*log_normal.*, but got 'loud'"):
        PAPER.trial(synthetic(), "loud", 0)


def test_calibration_rows_of_a_smaller_share_are_part_of_those_of_a_larger_one():
    table = synthetic()
    parts = [PAPER.trial(table, "clean", 3, share).calibration for share in (0.1, 0.3, 0.5)]
    rows = [set(inputs[:, 0].tolist()) for inputs, _ in parts]
    assert [len(part) for part in rows] == [90, 270, 450]
    for small, large in itertools.pairwise(rows):
        assert small < large
    assert torch.equal(parts[1][0], PAPER.trial(table, "clean", 3).calibration[0])


# Predictions as they are judged


def ensemble():
    """Two rows with noise variances 4 and 9, epistemic variances 1 and 16 and intervals of width 2."""
    mean, noise, doubt = (torch.tensor(values)[:, None] for values in ([1.0, 2.0], [4.0, 9.0], [1.0, 16.0]))
    bounds = {"lowers": mean[..., None] - 1, "uppers": mean[..., None] + 1}
    return RegressionPrediction(noise, doubt, noise + doubt, None, mean, (0.95,), **bounds)


@pytest.mark.parametrize("method", ["mc_dropout", "deep_ensemble"])
def test_ensembles_as_published_are_two_mean_deviations_wide_and_add_deviations(method):
    own = ensemble()
    found = AUTHORS.as_published(method, own)
    assert found.lowers.tolist() == [[[1.0 - 4.0]], [[2.0 - 6.0]]]
    assert found.uppers.tolist() == [[[1.0 + 4.0]], [[2.0 + 6.0]]]
    assert found.total.tolist() == [[3.0], [7.0]]
    assert found.epistemic is own.epistemic
    ours, published = (measured(Evidence(out, own.mean + 1), recorded=True) for out in (own, found))
    assert (ours["mpiw"], published["mpiw"]) == (2, 10)
    assert ours["rmse"] == published["rmse"]


@pytest.mark.parametrize("method", ["splitpoint", "evidential_regression", "gaussian"])
def test_other_methods_are_published_as_they_are(method):
    own = ensemble()
    assert AUTHORS.as_published(method, own) is own


@pytest.mark.parametrize("method", ["deep_ensemble", "gaussian"])
def test_the_paper_judges_every_method_as_it_is(method):
    own = ensemble()
    assert PAPER.as_published(method, own) is own
