"""Rivals in any units of the targets: squares of 1e-30 and of 1e30 are not numbers of float32."""

import pytest
import torch
from torch import nn

import splitpoint as sp

POWERS = {"mean": 1, "lower": 1, "upper": 1, "epistemic": 2, "aleatoric": 2}


def network(a=1.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        net[2].weight *= a
        net[2].bias *= a
    return net


def answered(method, a, start):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 3, generator=generator)
    y = a * (network()(x).detach() + torch.randn(120, 1, generator=generator))
    calibration = (x[60:], y[60:]) if isinstance(method, sp.baselines.Conformal) else None
    return method.fit(start, (x[:60], y[:60]), calibration=calibration, progress=False)(x)


@pytest.mark.parametrize("a", [2.0**-99, 2.0**99])
@pytest.mark.parametrize("name", ["gaussian", "deep_ensemble", "evidential_regression", "laplace", "conformal"])
def test_answers_follow_the_units_of_the_targets(name, a):
    methods = {
        "gaussian": sp.baselines.Gaussian(epochs=3),
        "deep_ensemble": sp.baselines.DeepEnsemble(epochs=3, members=2),
        "evidential_regression": sp.baselines.EvidentialRegression(epochs=3),
        "laplace": sp.baselines.Laplace(),
        "conformal": sp.baselines.Conformal(residual="normalised"),
    }
    trained = name in ("laplace", "conformal")
    found, expected = (answered(methods[name], own, network(own) if trained else network) for own in (a, 1.0))
    powers = POWERS | ({"aleatoric": 1, "epistemic": 1} if name == "conformal" else {})
    for field, power in powers.items():
        value = getattr(found, field).double() / a**power
        assert value.isfinite().all(), field
        torch.testing.assert_close(value, getattr(expected, field).double(), rtol=1e-3, atol=1e-4)
