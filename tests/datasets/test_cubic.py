"""The cubic task against the distributions that it names, as scipy knows them."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq

from splitpoint.datasets.cubic import cubic, side_quantiles
from splitpoint.datasets.noise import NOISE_LAWS
from splitpoint.errors import SettingsError

LOG_NORMAL = stats.lognorm(s=1, scale=math.exp(1.5))
CENTRES, WEIGHTS = np.array([0.0, 40.0, -10.0]), np.array([0.4, 0.3, 0.3])
CDFS = {
    "log_normal": lambda v: LOG_NORMAL.cdf(np.asarray(v) + LOG_NORMAL.mean()),
    "trimodal": lambda v: sum(
        w * stats.norm.cdf(np.asarray(v) + WEIGHTS @ CENTRES, c) for w, c in zip(WEIGHTS, CENTRES, strict=True)
    ),
    "gaussian": lambda v: stats.norm.cdf(v, scale=8),
}
"""Distribution functions of the centred noise."""
VARIANCES = {
    "log_normal": LOG_NORMAL.var(),
    "trimodal": 1 + WEIGHTS @ CENTRES**2 - (WEIGHTS @ CENTRES) ** 2,
    "gaussian": 64.0,
}
every_law = pytest.mark.parametrize("noise", CDFS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise_of(data):
    return (data.y - data.x**3).flatten().double().numpy()


def test_the_three_laws_of_the_paper_exist():
    assert set(NOISE_LAWS) == set(CDFS)


@every_law
def test_columns_have_one_row_per_point(noise):
    data = cubic(7, noise, generator=seeded())
    assert data.x.shape == data.y.shape == (7, 1)
    assert data.y.isfinite().all()


@every_law
def test_the_same_seed_gives_the_same_points_and_another_seed_others(noise):
    first, again, other = (cubic(50, noise, generator=seeded(s)) for s in (1, 1, 2))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert (first.y != other.y).any()


def test_two_draws_from_one_generator_are_independent():
    generator = seeded(3)
    first, second = cubic(4000, generator=generator), cubic(4000, generator=generator)
    assert abs(np.corrcoef(noise_of(first), noise_of(second))[0, 1]) < 5 / math.sqrt(4000)


def test_drawing_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    cubic(10, "trimodal", generator=seeded())
    side_quantiles("gaussian", 0.5, rows=1000)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("limit", [1.0, 4.0, 7.0])
def test_inputs_are_uniform_between_the_limits(limit):
    x = cubic(5000, "gaussian", limit, generator=seeded(4)).x.flatten().double().numpy()
    assert stats.kstest(x, stats.uniform(-limit, 2 * limit).cdf).pvalue > 1e-3


@every_law
def test_noise_follows_the_law_it_names(noise):
    data = cubic(5000, noise, generator=seeded(5))
    assert stats.kstest(noise_of(data), CDFS[noise]).pvalue > 1e-3


@every_law
def test_noise_has_mean_zero_so_that_the_cube_is_the_regression_function(noise):
    draws = noise_of(cubic(100_000, noise, generator=seeded(6)))
    assert abs(draws.mean()) < 4 * math.sqrt(VARIANCES[noise] / len(draws))


@every_law
def test_noise_does_not_depend_on_the_input(noise):
    data = cubic(20_000, noise, generator=seeded(7))
    x, draws = data.x.flatten().double().numpy(), noise_of(data)
    assert abs(stats.spearmanr(x, draws).statistic) < 4 / math.sqrt(len(x))
    assert abs(stats.spearmanr(np.abs(x), np.abs(draws)).statistic) < 4 / math.sqrt(len(x))


@every_law
@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_side_quantiles_cover_the_level_on_each_side_of_the_true_law(noise, level):
    rows, cdf = 100_000, CDFS[noise]
    down, up = side_quantiles(noise, level, rows)
    below = float(cdf(0.0))
    covered_down = (below - cdf(-down)) / below
    covered_up = (cdf(up) - below) / (1 - below)
    for covered, share in ((covered_down, below), (covered_up, 1 - below)):
        assert covered == pytest.approx(level, abs=5 * math.sqrt(level * (1 - level) / (share * rows)))


@every_law
def test_side_quantiles_of_the_default_size_are_precise(noise):
    cdf, level = CDFS[noise], 0.95
    below = float(cdf(0.0))
    true_down = -brentq(lambda v: cdf(v) - below * (1 - level), -100, 0)
    true_up = brentq(lambda v: cdf(v) - below - (1 - below) * level, 0, 300)
    assert side_quantiles(noise, level) == pytest.approx((true_down, true_up), rel=0.01)


def test_side_quantiles_of_symmetric_noise_by_hand():
    down, up = side_quantiles("gaussian", 0.95, rows=200_000)
    assert (down, up) == pytest.approx((8 * 1.95996, 8 * 1.95996), rel=0.02)


@every_law
def test_side_quantiles_grow_with_the_level(noise):
    low, high = side_quantiles(noise, 0.5, 20_000), side_quantiles(noise, 0.9, 20_000)
    assert low[0] < high[0]
    assert low[1] < high[1]


def test_an_unknown_noise_law_is_refused_with_the_choices():
    with pytest.raises(SettingsError, match=r"one of \['gaussian', 'log_normal', 'trimodal'\], but got 'cauchy'"):
        cubic(10, "cauchy", generator=seeded())


def test_side_quantiles_of_an_unknown_noise_law_are_refused_with_the_choices():
    with pytest.raises(SettingsError, match="cauchy"):
        side_quantiles("cauchy", 0.9, rows=100)


@pytest.mark.parametrize("level", [-0.5, 1.0, 1.5])
def test_side_quantiles_of_an_impossible_level_are_refused(level):
    with pytest.raises(SettingsError, match=str(level)):
        side_quantiles("gaussian", level, rows=100)
