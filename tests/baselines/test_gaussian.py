"""Mean and variance networks: the likelihood is SciPy's normal, and a known noise level is found."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from splitpoint.baselines import Gaussian, train_network
from splitpoint.baselines.gaussian import gaussian_nll, mean_and_variance


def factory():
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))


def noise(x):
    return 2 + 1.5 * x


def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(count, 1, generator=generator) - 1
    return x, 40 + 10 * x + noise(x) * torch.randn(count, 1, generator=generator)


def test_the_loss_is_a_normal_likelihood_without_its_constant():
    raw = 2 * torch.randn(50, 2, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.randn(50, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, variance = (part.numpy() for part in mean_and_variance(raw))
    expected = -stats.norm(mean, np.sqrt(variance)).logpdf(target.numpy()) - math.log(2 * math.pi) / 2
    np.testing.assert_allclose(gaussian_nll(raw, target), expected, rtol=1e-9)


SETTINGS = {"confidence_level": (0.5, 0.9), "epochs": 40, "learning_rate": 5e-3, "milestones": (0.7,)}


def test_a_noise_level_that_depends_on_the_input_is_found():
    predictor = Gaussian(**SETTINGS).fit(factory, data(2000, 0), progress=False)
    points = torch.tensor([[-0.8], [0.0], [0.8]])
    prediction = predictor.predict(points)
    torch.testing.assert_close(prediction.mean, 40 + 10 * points, atol=1.0, rtol=0)
    torch.testing.assert_close(prediction.aleatoric.sqrt(), noise(points), atol=0, rtol=0.2)
    assert prediction.epistemic.eq(0).all()
    x, y = data(4000, 1)
    fresh = predictor.predict(x)
    for level in (0.5, 0.9):
        lower, upper = fresh.interval(level)
        assert ((y >= lower) & (y <= upper)).double().mean().item() == pytest.approx(level, abs=0.04)


def test_a_frozen_network_is_a_pattern_of_which_every_layer_is_trained():
    pattern = train_network(factory, data(200, 0), epochs=1, progress=False)
    assert not any(p.requires_grad for p in pattern.parameters())
    method = Gaussian(epochs=1)
    fitted = method.fit(pattern, data(200, 0), progress=False, seed=3).networks[0]
    untrained = Gaussian(epochs=1, learning_rate=1e-12).fit(pattern, data(200, 0), progress=False, seed=3).networks[0]
    assert not torch.allclose(fitted[0].weight, untrained[0].weight, atol=1e-6)


def test_every_output_has_a_noise_of_its_own():
    x, y = data(1500, 0)
    both = torch.cat([y, 1e-3 * (y - 40)], 1)
    predictor = Gaussian(epochs=30, learning_rate=5e-3).fit(
        lambda: nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2)), (x, both), progress=False
    )
    prediction = predictor.predict(torch.zeros(1, 1))
    torch.testing.assert_close(prediction.mean, torch.tensor([[40.0, 0.0]]), atol=1.0, rtol=0)
    torch.testing.assert_close(
        prediction.aleatoric.sqrt() / torch.tensor([2, 2e-3]), torch.ones(1, 2), atol=0.25, rtol=0
    )
