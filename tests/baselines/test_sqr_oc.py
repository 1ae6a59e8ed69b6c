"""Simultaneous quantiles: those of a skewed law are found, they do not cross, and certificates see strange inputs."""

import pytest
import torch
from scipy import stats
from torch import nn

from splitpoint.baselines import SqrOc
from splitpoint.baselines.sqr_oc import scaled
from splitpoint.errors import SettingsError


def spread(x):
    return 3 + 2 * x


def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(count, 1, generator=generator) - 1
    return x, 10 + 4 * x + spread(x) * (0.6 * torch.randn(count, 1, generator=generator)).exp()


def factory():
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


@pytest.fixture(scope="module")
def fitted():
    method = SqrOc(confidence_level=(0.5, 0.8), epochs=60, learning_rate=5e-3, milestones=(0.6, 0.85))
    return method.fit(factory, data(3000, 0), progress=False)


def test_quantiles_of_a_skewed_law_are_found(fitted):
    points = torch.linspace(-0.9, 0.9, 40)[:, None]
    prediction = fitted.predict(points)
    found = {0.1: prediction.lower, 0.9: prediction.upper, 0.5: prediction.mean}
    found |= dict(zip((0.25, 0.75), prediction.interval(0.5), strict=True))
    for level, values in found.items():
        true = 10 + 4 * points + spread(points) * stats.lognorm(0.6).ppf(level)
        assert ((values - true) / spread(points)).abs().mean() < 0.2, level


def test_intervals_cover_and_do_not_cross(fitted):
    x, y = data(4000, 1)
    prediction = fitted.predict(x)
    for level in (0.5, 0.8):
        lower, upper = prediction.interval(level)
        assert ((y >= lower) & (y <= upper)).double().mean().item() == pytest.approx(level, abs=0.05)
    everywhere = fitted.predict(torch.linspace(-5, 5, 200)[:, None])
    bounds = torch.stack(
        [everywhere.lower, everywhere.interval(0.5)[0], everywhere.mean, everywhere.interval(0.5)[1], everywhere.upper]
    )
    assert (bounds.diff(dim=0) >= 0).all()


def test_certificates_answer_outside_the_data(fitted):
    inside, outside = fitted.predict(data(500, 2)[0]), fitted.predict(torch.tensor([[-6.0], [6.0]]))
    assert outside.epistemic.min() > inside.epistemic.max()


def test_a_prediction_does_not_depend_on_its_neighbours(fitted):
    x = data(9, 3)[0]
    torch.testing.assert_close(fitted.predict(x[:1]).upper, fitted.predict(x).upper[:1], rtol=1e-4, atol=1e-4)


def test_the_level_is_scaled_as_published():
    assert scaled(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-6, 0, 6]


def test_networks_of_double_precision_work():
    predictor = SqrOc(epochs=1).fit(lambda: factory().double(), tuple(d.double() for d in data(80, 0)), progress=False)
    assert predictor.predict(data(5, 1)[0].double()).mean.isfinite().all()


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"certificates": 0}, {"penalty": 0.0}):
        with pytest.raises(SettingsError, match="Expected certificates"):
            SqrOc(**wrong)


def test_an_attack_finds_the_slope_of_the_median(fitted):
    """As `attacks` need it: the slope of the answer, here with that of ``10 + 4 x + spread(x)``, 4 + 2."""
    x = torch.linspace(-0.5, 0.5, 20)[:, None].requires_grad_()
    answer, _ = fitted.live_answer(x)
    (slope,) = torch.autograd.grad(answer.mean.sum(), x)
    assert slope.mean() == pytest.approx(6, abs=0.6)
