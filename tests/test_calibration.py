"""Conformal factors and their guarantee, interval shapes, feature moments, the in-distribution reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import splitpoint as sp
from properties import examples
from splitpoint.cache import Table, feature_moments
from splitpoint.calibration import GRID, conformal_factor, image_reference, reference
from splitpoint.errors import DataError, SettingsError, SplitPointWarning
from splitpoint.regression.objective import fit_shape


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Conformal factors


@pytest.mark.parametrize(
    ("rows", "level", "rank"),
    [
        (9, 0.5, 5),
        (9, 0.9, 9),
        (19, 0.95, 19),
        (20, 0.95, 20),
        (39, 0.95, 38),
        (99, 0.9, 90),
        (100, 0.9, 91),
        (1, 0.5, 1),
    ],
)
def test_the_factor_is_the_ratio_of_rank_ceil_n_plus_one_times_level(rows, level, rank):
    ratio = torch.arange(1.0, rows + 1)[torch.randperm(rows, generator=torch.Generator().manual_seed(rows))]
    assert float(conformal_factor(ratio, level)) == rank


@pytest.mark.parametrize(("rows", "level", "needed"), [(18, 0.95, 19), (0, 0.5, 1), (8, 0.9, 9), (98, 0.99, 99)])
def test_too_few_rows_are_refused_with_the_number_that_is_needed(rows, level, needed):
    with pytest.raises(DataError, match=f"at least {needed} .* level {level}, but got {rows}; give more"):
        conformal_factor(torch.ones(rows), level)
    assert float(conformal_factor(torch.ones(needed), level)) == 1


@examples(50)
@given(st.integers(20, 400), st.floats(0.05, 0.95), st.integers(0, 1000))
def test_the_factor_covers_its_own_rows_with_one_row_to_spare(rows, level, seed):
    ratio = torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    factor = conformal_factor(ratio, level)
    covered = int((ratio <= factor).sum())
    assert covered >= (rows + 1) * level - 1e-6
    assert covered - 1 < (rows + 1) * level + 1e-6


@pytest.mark.parametrize(("rows", "level"), [(19, 0.95), (30, 0.8), (99, 0.9)])
def test_the_guarantee_holds_over_many_exchangeable_samples(rows, level):
    trials, fresh = 4000, 20
    generator = torch.Generator().manual_seed(rows)
    sizes = torch.randn(trials, rows + fresh, generator=generator).abs() ** 3
    covered = torch.stack([(row[rows:] <= conformal_factor(row[:rows], level)).double().mean() for row in sizes])
    error = float(covered.std() / math.sqrt(trials))
    assert level - 3 * error <= float(covered.mean()) <= level + 1 / (rows + 1) + 3 * error


def test_the_guarantee_holds_for_whole_intervals_on_each_side():
    """Fresh rows above (below) the mean are covered with at least the level, whatever the heads are worth."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(0)

    def sample(rows):
        x = 2 * torch.rand(rows, 1, generator=generator) - 1
        noise = torch.empty(rows, 1).exponential_(generator=generator) - 0.7
        with torch.no_grad():
            return x, net(x) + (1 + x.abs()) * noise

    level, trials, train = 0.8, 40, sample(200)
    method = sp.SplitPointRegressor(level, epochs=2, folds=0)
    shares = {1: [], -1: []}
    for _ in range(trials):
        uq = method.fit(net, train, calibration=sample(120), progress=False)
        x, y = sample(400)
        out = uq(x)
        inside = ((out.lower <= y) & (y <= out.upper)).double()
        for side, found in shares.items():
            found.append(float(inside[(y - out.mean).sign() == side].mean()))
    for found in shares.values():
        mean, error = np.mean(found), np.std(found) / math.sqrt(trials)
        assert level - 3 * error <= mean <= level + 1 / 20 + 3 * error


# Shapes of half-widths


@examples(40)
@given(st.integers(1, 300), st.sampled_from([0.5, 0.8, 0.9, 0.95]), st.integers(0, 1000))
def test_a_shape_covers_its_level_on_its_own_rows(rows, level, seed):
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(rows, generator=generator, dtype=torch.float64)
    parts = torch.rand(rows, 3, generator=generator).double() + 0.1
    shape = fit_shape(size.float(), parts.float(), level).double()
    width = parts.float().double() @ shape
    assert (shape >= 0).all()
    low, high = ((size <= width * factor).double().mean() for factor in (1 - 1e-4, 1 + 1e-4))
    wanted = min(int(level * rows) + 1, rows) / rows
    assert low <= wanted <= high


def test_a_shape_finds_the_part_that_the_sizes_follow():
    generator = torch.Generator().manual_seed(0)
    parts = torch.rand(5000, 3, generator=generator) + 0.05
    parts[:, 2] = 1
    noise = torch.rand(5000, generator=generator)
    for part in range(3):
        shape = fit_shape(parts[:, part] * noise, parts, 0.9)
        width = parts @ shape
        torch.testing.assert_close(width, 0.9 * parts[:, part], rtol=0.03, atol=0)
        assert shape.argmax() == part


def test_a_shape_scales_with_the_sizes_and_ignores_the_scale_of_the_parts():
    generator = torch.Generator().manual_seed(1)
    size, parts = torch.rand(200, generator=generator), torch.rand(200, 3, generator=generator) + 0.1
    width = parts @ fit_shape(size, parts, 0.9)
    scaled = parts * torch.tensor([10.0, 0.1, 3.0])
    torch.testing.assert_close(parts @ fit_shape(4 * size, parts, 0.9), 4 * width)
    torch.testing.assert_close(scaled @ fit_shape(size, scaled, 0.9), width, rtol=1e-4, atol=1e-5)


def test_without_rows_the_shape_is_the_predicted_quantile():
    assert fit_shape(torch.zeros(0), torch.zeros(0, 3), 0.9).tolist() == [1.0, 0.0, 0.0]


# Moments


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_moments_are_numpys(offset, monkeypatch):
    features = drawn(0, 500, 4) * torch.tensor([1.0, 10.0, 0.1, 0.0]) + offset
    table = Table.in_memory({"features": features})
    whole = Table.slices
    monkeypatch.setattr(Table, "slices", lambda self: whole(self, 70))
    mean, spread = feature_moments(table)
    values = features.double().numpy()
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(spread[:2], values.std(0)[:2], rtol=1e-4)
    assert spread[3] == 1


# The in-distribution reference


@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("rows", [1, 2, 19, 57, 999, 3000])
def test_the_threshold_is_the_score_of_rank_ceil_n_plus_one_times_the_quantile(rows, quantile):
    score = drawn(rows, rows, 3).square().double()
    rank = math.ceil(round((rows + 1) * quantile, 9))
    if rank > rows:
        needed = math.ceil(round(quantile / (1 - quantile), 9))
        with pytest.raises(DataError, match=f"at least {needed} rows to set a threshold at .* but got {rows}; give"):
            reference([score], (3,), quantile)
        return
    found, ordered = reference([score], (3,), quantile), np.sort(score.numpy(), axis=0)
    np.testing.assert_array_equal(found.threshold, ordered[rank - 1])
    kept = ordered.T if rows <= GRID else ordered.T[:, [-(-i * (rows + 1) // 1000) - 1 for i in range(1, 1000)]]
    np.testing.assert_array_equal(found.quantiles, kept)
    pooled = reference([score], (), quantile)
    assert (
        float(pooled.threshold) == np.sort(score.numpy(), axis=None)[math.ceil(round((3 * rows + 1) * quantile, 9)) - 1]
    )


@pytest.mark.parametrize("rows", [20, 57, 999, 1000, 12_345])
@pytest.mark.parametrize("tied", [False, True])
def test_percentiles_are_those_of_the_conformal_p_value_and_go_with_the_flags(rows, tied):
    known, new = drawn(rows, rows).double(), torch.cat([drawn(1, 500).double(), torch.tensor([-99.0, 99.0]).double()])
    if tied:
        known, new = (4 * known).round(), (4 * new).round()
    found = reference([known], (), 0.9)
    p = (1 + (known >= new[:, None]).sum(1)).double() / (rows + 1)
    percent = found.percentile(new)
    lag = 1e-9 if rows <= GRID else 100 / (GRID + 1)
    assert (percent <= 100 * (1 - p) + 1e-9).all()
    assert (percent >= 100 * (1 - p) - lag).all()
    assert torch.equal(found.flagged(new), percent >= 90 - 1e-9)


@pytest.mark.parametrize("rows", [20, 50, 200, 1000])
@pytest.mark.parametrize("tied", [False, True])
def test_false_alarms_are_no_more_than_the_quantile_allows(rows, tied):
    """Over many references of any size; with 20 rows the plain quantile flags .09 of fresh rows in place of .05."""
    trials, fresh = 3000, 50
    scores = drawn(rows, trials, rows + fresh).double().abs() ** 3
    if tied:
        scores = (2 * scores).round()
    shares, reached = [], []
    for row in scores:
        found = reference([row[:rows]], (), 0.95)
        shares.append(float(found.flagged(row[rows:]).double().mean()))
        reached.append(float((found.percentile(row[rows:]) >= 95).double().mean()))
    for found in (np.array(shares), np.array(reached)):
        assert found.mean() <= 0.05 + 2 * found.std() / math.sqrt(trials)
        assert tied or found.mean() >= 0.05 - 1 / (rows + 1) - 3 * found.std() / math.sqrt(trials)


def test_maps_have_a_reference_for_each_channel():
    score = drawn(0, 20, 2, 3, 4).double()
    found = reference([score], (2, 1, 1), 0.9)
    assert found.threshold.shape == (2, 1, 1)
    expected = np.sort(score.movedim(1, 0).flatten(1).numpy(), axis=1)[:, math.ceil(0.9 * 241) - 1]
    np.testing.assert_array_equal(found.threshold.flatten(), expected)


def test_too_few_images_are_told_and_flagged_above_the_largest():
    score = drawn(0, 12).abs()
    with pytest.warns(SplitPointWarning, match=r"images: .* takes 19 images, .* of these 12, which 1 of 13"):
        found = image_reference([score[:5], score[5:]], 0.95)
    assert float(found.threshold) == float(score.max())
    np.testing.assert_array_equal(found.quantiles, score.sort().values)


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_quantile_outside_its_range_is_refused(quantile):
    with pytest.raises(SettingsError, match=r"quantile in \(0, 1\), but got"):
        reference([torch.rand(10)], (), quantile)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_refused(bad):
    with pytest.raises(DataError, match=r"finite support scores .* but got NaN or inf; check the data"):
        reference([torch.tensor([0.1, bad])], (), 0.9)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_threshold_flags_its_share_of_fresh_rows(task):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1 if task == "regression" else 3))

    def sample(seed, rows):
        x = drawn(seed, rows, 2)
        if task == "regression":
            return x, net(x).detach() + drawn(seed + 1, rows, 1)
        probs = net(x).detach().softmax(1)
        return x, torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed)).flatten()

    regressor = sp.SplitPointRegressor(epochs=3, folds=0)
    method = regressor if task == "regression" else sp.SplitPointClassifier(epochs=3)
    uq = method.fit(net, sample(0, 500), progress=False).set_threshold(sample(10, 4000), quantile=0.95)
    share = float(uq(sample(20, 4000)[0]).flagged.double().mean())
    assert abs(share - 0.05) < 3 * math.sqrt(2 * 0.05 * 0.95 / 4000)
