"""Temperatures: a known one is found, and nothing but the probabilities changes."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, special
from torch import nn

from splitpoint.baselines import Ddu, DeepEnsemble, OrthonormalCertificates, Softmax
from splitpoint.baselines.answers import softmax_answer
from splitpoint.calibration import fit_temperature, tempered


def labelled(temperature, count=40_000, classes=4, scale=3.0):
    """Logits, and labels drawn from ``softmax(logits / temperature)``."""
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(count, classes, generator=generator)
    return logits, torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5, 6.0])
def test_a_known_temperature_is_found(temperature):
    logits, label = labelled(temperature, scale=3 * temperature)
    assert fit_temperature(logits, label).item() == pytest.approx(temperature, rel=0.02)


def test_it_is_the_minimum_that_scipy_finds():
    logits, label = labelled(2.0, 500)
    rows = logits.double().numpy()

    def cost(log_t):
        scores = rows / math.exp(log_t)
        return np.mean(special.logsumexp(scores, 1) - scores[np.arange(len(rows)), label.numpy()])

    expected = math.exp(optimize.minimize_scalar(cost, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}).x)
    assert fit_temperature(logits, label).item() == pytest.approx(expected, rel=1e-4)


def test_calibration_error_chooses_from_the_grid():
    logits, label = labelled(2.0)
    found = fit_temperature(logits, label, "ece").item()
    assert found == pytest.approx(2.0, abs=0.21)
    assert round(10 * found, 4) == round(10 * found)


@pytest.mark.parametrize(("right", "end"), [(True, 0.01), (False, 100.0)])
def test_perfect_and_hopeless_logits_end_at_the_limits(right, end):
    logits = 5 * torch.eye(3).repeat(20, 1)
    label = torch.arange(3).repeat(20)
    assert fit_temperature(logits if right else -logits, label).item() == pytest.approx(end, rel=0.3 if right else 1e-3)


def test_a_tempered_softmax_is_the_softmax_of_scaled_logits():
    logits = 5 * torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    answer = softmax_answer(logits)
    found = tempered(answer, torch.tensor(1.7))
    expected = special.softmax(logits.double().numpy() / 1.7, axis=1)
    np.testing.assert_allclose(found.probs, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.total, special.entr(expected).sum(1), rtol=1e-4, atol=1e-5)
    assert torch.equal(found.epistemic, answer.epistemic)
    assert torch.equal(found.base_probs, answer.base_probs)


class Sharp(nn.Module):
    """Overconfident by a factor of three: the truth is ``softmax(x w)``."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.last.weight)
        with torch.no_grad():
            self.last.weight.mul_(3)

    def forward(self, x):
        return self.last(x)


def data(count=6000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(count, 3, generator=generator)
    return x, torch.multinomial(x.softmax(1), 1, generator=generator)[:, 0]


COMPOSED = {"softmax": (Softmax, {}), "oc": (OrthonormalCertificates, {}), "ddu": (Ddu, {})}


@pytest.mark.parametrize("by", ["nll", "ece"])
@pytest.mark.parametrize(("make", "settings"), COMPOSED.values(), ids=COMPOSED.keys())
def test_any_method_takes_a_temperature_and_keeps_its_labels_and_scores(make, settings, by):
    plain = make(**settings).fit(Sharp(), data(), progress=False)
    scaled = make(temperature=by, **settings).fit(Sharp(), data(), calibration=data(20_000, seed=1), progress=False)
    assert scaled.fitted["temperature"].item() == pytest.approx(3, rel=0.05 if by == "nll" else 0.15)
    x = data(200, seed=2)[0]
    before, after = plain.predict(x), scaled.predict(x)
    assert torch.equal(before.label, after.label)
    assert torch.equal(before.epistemic, after.epistemic)
    if by == "nll":
        torch.testing.assert_close(after.probs, x.softmax(1), atol=0.03, rtol=0)


def test_an_ensemble_takes_a_temperature_and_keeps_its_labels_and_scores():
    def factory():
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    settings = {"members": 2, "epochs": 5, "learning_rate": 0.01}
    plain = DeepEnsemble(**settings).fit(factory, data(500), progress=False)
    scaled = DeepEnsemble(temperature="nll", **settings).fit(
        factory, data(500), calibration=data(4000, seed=1), progress=False
    )
    x, label = data(4000, seed=2)
    before, after = plain.predict(x), scaled.predict(x)
    assert torch.equal(before.label, after.label)
    assert torch.equal(before.epistemic, after.epistemic)
    losses = [-prediction.probs[torch.arange(len(x)), label].log().mean() for prediction in (before, after)]
    assert losses[1] < losses[0]
