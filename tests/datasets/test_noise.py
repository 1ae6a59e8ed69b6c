"""Noise laws against scipy: their distribution functions, their exact means, and the draws that seeds used to give."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from splitpoint.datasets.noise import NOISE_LAWS, UCI_NOISE_LAWS, log_normal, mixture, normal


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
every_law = pytest.mark.parametrize("name", LAWS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


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
def test_drawing_leaves_the_global_generator_alone(law):
    before = torch.get_rng_state()
    assert law(7, seeded()).shape == (7,)
    assert torch.equal(before, torch.get_rng_state())
