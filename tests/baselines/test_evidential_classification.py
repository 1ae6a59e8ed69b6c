"""Evidential classification: risk and divergence of Dirichlet laws by torch.distributions and by sampling."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Dirichlet, kl_divergence
from torch.nn import functional as F

from splitpoint.baselines import EvidentialClassification
from splitpoint.baselines.evidential_classification import dirichlet, squared_risk, uniform_divergence
from splitpoint.errors import SettingsError


def alphas(count=40, classes=4):
    return dirichlet(4 * torch.randn(count, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


def test_the_divergence_is_torchs():
    alpha = alphas()
    torch.testing.assert_close(
        uniform_divergence(alpha), kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones(4).double()))
    )
    assert uniform_divergence(torch.ones(1, 4)).abs().item() < 1e-6


def test_the_risk_is_the_mean_squared_error_of_sampled_probabilities():
    alpha, label = alphas(5), torch.tensor([0, 1, 2, 3, 0])
    rng = np.random.default_rng(0)
    one_hot = F.one_hot(label, 4)
    found = squared_risk(alpha, one_hot.double())
    for own, target, value in zip(alpha, one_hot, found, strict=True):
        sampled = ((rng.dirichlet(own.numpy(), 200_000) - target.numpy()) ** 2).sum(1)
        assert value.item() == pytest.approx(sampled.mean(), abs=5 * sampled.std() / 200_000**0.5)


def test_the_divergence_sees_evidence_against_wrong_classes_only_and_rises_with_training():
    raw, label = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1, 2])
    method = EvidentialClassification(regulariser=2.0, annealing=0.5)
    losses = [method._loss(raw, label, part) for part in (0.0, 0.25, 0.5, 1.0)]
    wrong = dirichlet(raw).scatter(1, label[:, None], 1.0)
    expected = kl_divergence(Dirichlet(wrong), Dirichlet(torch.ones(3)))
    torch.testing.assert_close(losses[1] - losses[0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses[2] - losses[0], 2 * expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses[3], losses[2])


def test_blobs_are_told_apart_and_vacuity_is_a_share():
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(300) % 3
    x = torch.tensor([[2.0, 0.0], [-2.0, 2.0], [0.0, -3.0]])[label] + 0.4 * torch.randn(300, 2, generator=generator)
    method = EvidentialClassification(epochs=60, learning_rate=0.01)
    predictor = method.fit(
        lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3)), (x, label), progress=False
    )
    prediction = predictor.predict(x)
    assert (prediction.label == label).double().mean() > 0.98
    everywhere = predictor.predict(20 * torch.randn(500, 2, generator=generator))
    for scores in (prediction.epistemic, everywhere.epistemic):
        assert ((scores > 0) & (scores <= 1)).all()
    between = predictor.predict(torch.tensor([[-0.1, -0.2]]))
    assert between.epistemic.item() > prediction.epistemic.mean()
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(300))


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"regulariser": -1.0}, {"annealing": 0.0}, {"annealing": 2.0}):
        with pytest.raises(SettingsError, match="Expected"):
            EvidentialClassification(**wrong)
