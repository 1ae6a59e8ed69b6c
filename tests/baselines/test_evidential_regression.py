"""Deep evidential regression: the likelihood is SciPy's Student t, and a known noise level is found."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from splitpoint.baselines import EvidentialRegression
from splitpoint.baselines.evidential_regression import NormalInverseGamma, student_nll
from splitpoint.errors import SettingsError


def priors(count=60):
    raw = 2 * torch.randn(count, 4, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return raw, NormalInverseGamma.of(raw)


def test_the_likelihood_is_a_student_t():
    raw, prior = priors()
    target = torch.randn(60, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gamma, nu, alpha, beta = (part.numpy() for part in prior)
    law = stats.t(2 * alpha, gamma, np.sqrt(beta * (1 + nu) / (nu * alpha)))
    found = EvidentialRegression(regulariser=0.0)._loss(raw, target, 0.0)
    np.testing.assert_allclose(found, -law.logpdf(target.numpy()), rtol=1e-9)
    error = (target - prior.gamma).numpy()
    weighted = EvidentialRegression(regulariser=0.3)._loss(raw, target, 0.0)
    np.testing.assert_allclose(weighted - found, 0.3 * np.abs(error) * (2 * nu + alpha), rtol=1e-9)


def test_the_student_density_of_its_arguments():
    error, nu, alpha, omega = (torch.tensor(v, dtype=torch.float64) for v in (0.7, 1.3, 2.5, 4.0))
    expected = -stats.t(5.0, 0, math.sqrt(4 / (2 * 2.5 * 1.3))).logpdf(0.7)
    assert student_nll(error, nu, alpha, omega).item() == pytest.approx(expected, rel=1e-9)


def test_parts_are_moments_of_the_prior():
    """``E[sigma^2]`` and ``Var[mu]`` by sampling."""
    prior = NormalInverseGamma(*(torch.tensor(v) for v in (1.0, 2.0, 6.0, 3.0)))
    rng = np.random.default_rng(0)
    variance = stats.invgamma(6, scale=3).rvs(400_000, random_state=rng)
    mu = rng.normal(1, np.sqrt(variance / 2))
    assert prior.aleatoric.item() == pytest.approx(variance.mean(), rel=0.01)
    assert prior.epistemic.item() == pytest.approx(mu.var(), rel=0.01)


def test_the_noise_level_is_found_and_the_interval_covers():
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(800, 1, generator=generator) - 2
    y = 100 + 30 * torch.sin(x) + 6 * torch.randn(800, 1, generator=generator)
    method = EvidentialRegression(confidence_level=0.9, epochs=60, learning_rate=5e-3, milestones=(0.7,))
    predictor = method.fit(lambda: nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)), (x, y), progress=False)
    fresh = torch.linspace(-1.9, 1.9, 2000)[:, None]
    noisy = 100 + 30 * torch.sin(fresh) + 6 * torch.randn(2000, 1, generator=generator)
    prediction = predictor.predict(fresh)
    assert (prediction.mean - 100 - 30 * torch.sin(fresh)).abs().mean() < 2
    # The likelihood knows the sum of the two variances only; the regulariser decides how they share it.
    assert prediction.total.mean().sqrt().item() == pytest.approx(6, rel=0.15)
    assert 3 < prediction.aleatoric.mean().sqrt() < 6.5
    covered = ((noisy >= prediction.lower) & (noisy <= prediction.upper)).double().mean().item()
    assert covered == pytest.approx(0.9, abs=0.04)
    law = stats.t(prediction.freedom.numpy(), prediction.mean.numpy(), prediction.scale.numpy())
    np.testing.assert_allclose(prediction.upper, law.ppf(0.95), rtol=1e-4)


def test_a_negative_weight_is_refused():
    with pytest.raises(SettingsError, match="regulariser >= 0"):
        EvidentialRegression(regulariser=-1.0)


def test_the_likelihood_has_the_gradients_of_its_formula():
    generator = torch.Generator().manual_seed(0)
    error, nu, alpha, omega = torch.rand(4, 7, 2, generator=generator, dtype=torch.float64).add(0.3).unbind()
    parts = [part.clone().requires_grad_() for part in (error - 0.8, nu, alpha + 1, omega)]
    assert torch.autograd.gradcheck(student_nll, parts)


def test_the_likelihood_is_that_of_a_student_law():
    error, nu, alpha, omega = (torch.tensor(value, dtype=torch.float64) for value in (0.7, 1.3, 2.1, 0.9))
    scale = (omega / (2 * alpha * nu)).sqrt()
    expected = -torch.distributions.StudentT(2 * alpha, 0.0, scale).log_prob(error)
    assert student_nll(error, nu, alpha, omega).item() == pytest.approx(expected.item(), rel=1e-12)
