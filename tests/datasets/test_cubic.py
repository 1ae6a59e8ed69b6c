"""The cubic task and the laws of noise against the distributions that they name, as scipy knows them."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq

from splitpoint.datasets.cubic import (
    NOISE_LAWS,
    UCI_NOISE_LAWS,
    cubic,
    log_normal,
    mixture,
    normal,
    side_quantiles,
)
from splitpoint.errors import SettingsError


def mixed(weights, centres, deviations):
    parts = list(zip(weights, centres, deviations, strict=True))
    cdf = lambda v: sum(w * stats.norm.cdf(v, c, max(s, 1e-12)) for w, c, s in parts)  # noqa: E731
    mean = sum(w * c for w, c, _ in parts)
    return cdf, mean, sum(w * (s**2 + c**2) for w, c, s in parts) - mean**2


def log_normally(mu, sigma, scale=1.0):
    law = stats.lognorm(s=sigma, scale=scale * math.exp(mu))
    return law.cdf, law.mean(), law.var()


LAWS = {
    "cubic log_normal": (NOISE_LAWS["log_normal"], *log_normally(1.5, 1)),
    "cubic trimodal": (NOISE_LAWS["trimodal"], *mixed([0.4, 0.3, 0.3], [0, 40, -10], [1, 1, 1])),
    "cubic gaussian": (NOISE_LAWS["gaussian"], stats.norm(0, 8).cdf, 0.0, 64.0),
    "uci log_normal": (UCI_NOISE_LAWS["log_normal"], *log_normally(1, 0.5)),
    "uci trimodal": (UCI_NOISE_LAWS["trimodal"], *mixed([0.3, 0.4, 0.3], [-1, 0, 3], [0.1] * 3)),
    "uci authors_log_normal": (UCI_NOISE_LAWS["authors_log_normal"], *log_normally(1, 0.5, 0.1)),
    "uci authors_trimodal": (
        UCI_NOISE_LAWS["authors_trimodal"],
        *mixed([0.3, 0.4, 0.3], [-0.2, 0, 0.6], [0.05, 0, 0.15]),
    ),
}
"""Laws, and their distribution functions, means and variances from elsewhere."""

CDFS = {
    noise: lambda v, cdf=LAWS[f"cubic {noise}"][1], mean=LAWS[f"cubic {noise}"][2]: cdf(np.asarray(v) + mean)
    for noise in ("log_normal", "trimodal", "gaussian")
}
"""Distribution functions of the centred noise."""

every_law = pytest.mark.parametrize("name", LAWS)
every_noise = pytest.mark.parametrize("noise", CDFS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise_of(data):
    return (data.y - data.x**3).flatten().double().numpy()


def test_the_three_laws_of_the_paper_exist():
    assert set(NOISE_LAWS) == set(CDFS)


@every_noise
def test_columns_have_one_row_per_point(noise):
    data = cubic(7, noise, generator=seeded())
    assert data.x.shape == data.y.shape == (7, 1)
    assert data.y.isfinite().all()


@every_noise
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


@every_noise
def test_noise_follows_the_law_it_names(noise):
    data = cubic(5000, noise, generator=seeded(5))
    assert stats.kstest(noise_of(data), CDFS[noise]).pvalue > 1e-3


@every_noise
def test_noise_does_not_depend_on_the_input(noise):
    data = cubic(20_000, noise, generator=seeded(7))
    x, draws = data.x.flatten().double().numpy(), noise_of(data)
    assert abs(stats.spearmanr(x, draws).statistic) < 4 / math.sqrt(len(x))
    assert abs(stats.spearmanr(np.abs(x), np.abs(draws)).statistic) < 4 / math.sqrt(len(x))


@every_noise
@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_side_quantiles_cover_the_level_on_each_side_of_the_true_law(noise, level):
    rows, cdf = 100_000, CDFS[noise]
    down, up = side_quantiles(noise, level, rows)
    below = float(cdf(0.0))
    covered_down = (below - cdf(-down)) / below
    covered_up = (cdf(up) - below) / (1 - below)
    for covered, share in ((covered_down, below), (covered_up, 1 - below)):
        assert covered == pytest.approx(level, abs=5 * math.sqrt(level * (1 - level) / (share * rows)))


@every_noise
def test_side_quantiles_of_the_default_size_are_precise(noise):
    cdf, level = CDFS[noise], 0.95
    below = float(cdf(0.0))
    true_down = -brentq(lambda v: cdf(v) - below * (1 - level), -100, 0)
    true_up = brentq(lambda v: cdf(v) - below - (1 - below) * level, 0, 300)
    assert side_quantiles(noise, level) == pytest.approx((true_down, true_up), rel=0.01)


def test_an_unknown_noise_law_is_refused_with_the_choices():
    with pytest.raises(SettingsError, match=r"one of \['gaussian', 'log_normal', 'trimodal'\], but got 'cauchy'"):
        cubic(10, "cauchy", generator=seeded())
    with pytest.raises(SettingsError, match="cauchy"):
        side_quantiles("cauchy", 0.9, rows=100)


@pytest.mark.parametrize("level", [-0.5, 1.0, 1.5])
def test_side_quantiles_of_an_impossible_level_are_refused(level):
    with pytest.raises(SettingsError, match=str(level)):
        side_quantiles("gaussian", level, rows=100)


# Laws of noise


def test_every_law_is_tested():
    assert len(LAWS) == len(NOISE_LAWS) + len(UCI_NOISE_LAWS)


@every_law
def test_draws_follow_the_law(name):
    law, cdf, _, _ = LAWS[name]
    draws = law.draw(5000, seeded(1)).double().numpy()
    if name == "uci authors_trimodal":
        draws = draws[draws != 0]  # four in ten are exactly zero, where the distribution function jumps
        assert len(draws) == pytest.approx(3000, abs=150)
        cdf, _, _ = mixed([0.5, 0.5], [-0.2, 0.6], [0.05, 0.15])
    assert stats.kstest(draws, cdf).pvalue > 1e-3


@every_law
def test_the_mean_is_exact_and_centred_draws_are_without_it(name):
    law, _, mean, variance = LAWS[name]
    assert law.mean == pytest.approx(mean, rel=1e-12, abs=1e-15)
    assert torch.equal(law(50, seeded()), law.draw(50, seeded()) - law.mean)
    draws = law(200_000, seeded(2)).double()
    assert abs(float(draws.mean())) < 4 * math.sqrt(variance / len(draws))
    assert float(draws.var()) == pytest.approx(variance, rel=0.1)


def test_the_noise_of_the_paper_drowns_normalised_targets_and_that_of_the_code_does_not():
    spread = {name: float(law(100_000, seeded()).std()) for name, law in UCI_NOISE_LAWS.items()}
    assert min(spread["log_normal"], spread["trimodal"]) > 1.6
    assert max(spread["authors_log_normal"], spread["authors_trimodal"]) < 0.4


def test_the_authors_trimodal_noise_is_a_mode_times_a_normal():
    generator = np.random.default_rng(0)
    theirs = generator.choice([-1, 0, 3], 20_000, p=[0.3, 0.4, 0.3]) * generator.normal(0.2, 0.05, 20_000)
    ours = UCI_NOISE_LAWS["authors_trimodal"].draw(20_000, seeded()).double().numpy()
    assert stats.ks_2samp(theirs, ours).pvalue > 1e-3


def test_seeds_give_the_draws_they_always_gave():
    g = seeded(3)
    assert torch.equal(NOISE_LAWS["log_normal"](9, seeded(3)), (1.5 + torch.randn(9, generator=g)).exp() - math.exp(2))
    g = seeded(3)
    component = torch.multinomial(torch.tensor([0.4, 0.3, 0.3]), 9, replacement=True, generator=g)
    expected = torch.tensor([0.0, 40.0, -10.0])[component] + torch.randn(9, generator=g) - 9
    assert torch.equal(NOISE_LAWS["trimodal"](9, seeded(3)), expected)
    g = seeded(3)
    assert torch.equal(NOISE_LAWS["gaussian"](9, seeded(3)), 8 * torch.randn(9, generator=g))


@pytest.mark.parametrize("law", [log_normal(0.0, 1.0), normal(2.0), mixture((0.5, 0.5), (0.0, 1.0), (1.0, 1.0))])
def test_a_law_of_noise_leaves_the_global_generator_alone(law):
    before = torch.get_rng_state()
    assert law(7, seeded()).shape == (7,)
    assert torch.equal(before, torch.get_rng_state())
