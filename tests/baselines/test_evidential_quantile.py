"""Evidential quantiles: the likelihood is SciPy's Student t, and quantiles of a skewed law are found."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from splitpoint.baselines import EvidentialQuantile
from splitpoint.baselines.evidential_quantile import quantile_nll
from splitpoint.baselines.evidential_regression import NormalInverseGamma
from splitpoint.errors import SettingsError


@pytest.mark.parametrize("q", [0.05, 0.5, 0.8])
def test_the_likelihood_is_a_student_t(q):
    generator = torch.Generator().manual_seed(0)
    prior = NormalInverseGamma.of(2 * torch.randn(50, 4, 1, generator=generator, dtype=torch.float64))
    target = torch.randn(50, 1, generator=generator, dtype=torch.float64)
    gamma, nu, alpha, beta = (part.numpy() for part in prior)
    z = beta / (alpha - 1)
    theta, omega = (1 - 2 * q) / (q * (1 - q)), 2 / (q * (1 - q))
    law = stats.t(2 * alpha, gamma + theta * z, np.sqrt(beta * (1 + omega * z * nu) / (nu * alpha)))
    np.testing.assert_allclose(quantile_nll(prior, target, q), -law.logpdf(target.numpy()), rtol=1e-8)


def test_an_asymmetric_laplace_variable_is_normal_given_an_exponential():
    """The mixture behind the likelihood, by sampling: its q-quantile is the location."""
    q, rng = 0.8, np.random.default_rng(0)
    theta, omega = (1 - 2 * q) / (q * (1 - q)), 2 / (q * (1 - q))
    z = rng.exponential(size=200_000)
    y = theta * z + np.sqrt(omega * z) * rng.normal(size=200_000)
    assert np.mean(y <= 0) == pytest.approx(q, abs=0.005)


def test_quantiles_of_a_skewed_law_are_near():
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(1500, 1, generator=generator) - 1
    y = 50 + 10 * x + 5 * (0.7 * torch.randn(1500, 1, generator=generator)).exp()
    method = EvidentialQuantile(confidence_level=0.8, epochs=50, learning_rate=5e-3, milestones=(0.7,))
    predictor = method.fit(lambda: nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1)), (x, y), progress=False)
    points = torch.linspace(-0.9, 0.9, 50)[:, None]
    prediction = predictor.predict(points)
    found = {0.1: prediction.lower, 0.5: prediction.mean, 0.9: prediction.upper}
    for level, values in found.items():
        true = 50 + 10 * points + 5 * stats.lognorm(0.7).ppf(level)
        assert (values - true).mean().abs() < 2.1, level  # a fifth of the true width
    assert (prediction.lower <= prediction.mean).all()
    assert (prediction.mean <= prediction.upper).all()
    assert (prediction.upper - prediction.mean).mean() > 1.3 * (prediction.mean - prediction.lower).mean()


def test_a_negative_weight_is_refused():
    with pytest.raises(SettingsError, match="regulariser >= 0"):
        EvidentialQuantile(regulariser=-1.0)
