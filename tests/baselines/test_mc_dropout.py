"""Monte Carlo dropout: moments over the passes, masks that all rows share, eval mode for everything else."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from splitpoint.baselines import McDropout
from splitpoint.errors import SettingsError
from splitpoint.networks.surgery import MaskDropout, sampling


def regression():
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(400, 1, generator=generator) - 1
    return x, 30 + 8 * x + torch.randn(400, 1, generator=generator)


def network(outputs=1, inputs=1):
    return lambda: nn.Sequential(nn.Linear(inputs, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, outputs))


@pytest.fixture(scope="module")
def fitted():
    return McDropout(passes=6, dropout=0.1, epochs=40, learning_rate=5e-3).fit(network(), regression(), progress=False)


def test_moments_are_those_of_the_passes(fitted):
    y = regression()[1]
    points = torch.linspace(-2, 2, 9)[:, None]
    base, runs = fitted.networks[0], []
    for seed in range(6):
        with sampling(seed):
            runs.append(base(points))
    raw, spread = torch.stack(runs), y.std(correction=0)
    means, variances = y.mean() + spread * raw[..., :1], spread**2 * F.softplus(raw[..., 1:])
    prediction = fitted.predict(points)
    torch.testing.assert_close(prediction.mean, means.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(prediction.epistemic, means.var(0, correction=0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(prediction.aleatoric, variances.mean(0), rtol=1e-3, atol=1e-4)
    assert (prediction.epistemic > 0).all()


def test_a_prediction_is_the_same_every_time_and_among_any_neighbours(fitted):
    x = regression()[0]
    whole = fitted.predict(x)
    assert torch.equal(whole.mean, fitted.predict(x).mean)
    torch.testing.assert_close(fitted.predict(x[5:6]).total, whole.total[5:6], rtol=1e-4, atol=1e-5)


def test_a_line_is_learned(fitted):
    x = torch.linspace(-0.9, 0.9, 20)[:, None]
    prediction = fitted.predict(x)
    assert (prediction.mean - 30 - 8 * x).abs().mean() < 1
    assert prediction.total.mean().sqrt().item() == pytest.approx(1, abs=0.8)


def test_a_dropped_linear_layer_has_the_variance_of_a_binomial():
    """One pass of ``sum_i w_i m_i x_i / (1 - p)`` has variance ``p / (1 - p) sum_i (w_i x_i)^2`` around its mean."""
    layer = nn.Sequential(MaskDropout(0.3), nn.Linear(20, 1, bias=False)).eval()
    x = torch.randn(1, 20, generator=torch.Generator().manual_seed(0))
    runs = []
    for seed in range(4000):
        with sampling(seed), torch.no_grad():
            runs.append(layer(x).item())
    expected = 0.3 / 0.7 * (layer[1].weight * x).square().sum().item()
    assert np.var(runs) == pytest.approx(expected, rel=0.1)
    assert np.mean(runs) == pytest.approx(layer(x).item(), abs=5 * (expected / 4000) ** 0.5)


def test_classes_mix_probabilities():
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(120) % 2
    x = torch.randn(120, 2, generator=generator) + 3 * label[:, None]
    predictor = McDropout(epochs=20, learning_rate=0.01).fit(network(2, 2), (x, label), progress=False)
    base, runs = predictor.networks[0], []
    for seed in range(5):
        with sampling(seed):
            runs.append(base(x).softmax(1).double().numpy())
    prediction = predictor.predict(x)
    within = stats.entropy(np.stack(runs), axis=2).mean(0)
    np.testing.assert_allclose(prediction.probs, np.mean(runs, 0), atol=1e-5)
    np.testing.assert_allclose(prediction.epistemic, stats.entropy(np.mean(runs, 0), axis=1) - within, atol=1e-5)
    assert (prediction.label == label).double().mean() > 0.9


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"dropout": 0.0}, {"dropout": 1.0}, {"passes": 1}):
        with pytest.raises(SettingsError, match="Expected"):
            McDropout(**wrong)
