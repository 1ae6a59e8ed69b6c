"""DDU: densities are SciPy's, and degenerate classes do not break them."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from splitpoint.baselines import Ddu, NetworkTraining, ddu
from splitpoint.baselines.ddu import fit_densities, negative_log_density
from splitpoint.cache import Table
from splitpoint.errors import SettingsError

WIDTH, CLASSES = 3, 3


def clusters(counts=(200, 100, 50), seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts, labels = [], []
    for k, count in enumerate(counts):
        mixing = torch.randn(WIDTH, WIDTH, generator=generator)
        parts.append(torch.randn(count, WIDTH, generator=generator) @ mixing + 3 * k)
        labels.append(torch.full((count, 1), k))
    return torch.cat(parts), torch.cat(labels)


def densities(features, label, classes=CLASSES):
    return fit_densities(Table.in_memory({"features": features, "label": label}), classes)


def test_the_score_is_the_density_of_a_mixture_up_to_its_constant():
    features, label = clusters()
    points = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(9)) * 4
    found = negative_log_density(points, **densities(features, label))[:, 0].numpy()
    parts = []
    for k in range(CLASSES):
        own = features[label[:, 0] == k].double().numpy()
        law = stats.multivariate_normal(own.mean(0), np.cov(own.T))
        parts.append(np.log(len(own) / len(features)) + law.logpdf(points.numpy()))
    expected = -np.logaddexp.reduce(parts) - WIDTH / 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_far_cluster_has_a_higher_score_than_any_training_row():
    features, label = clusters()
    fitted = densities(features, label)
    far = negative_log_density(features + 60, **fitted)
    assert far.min() > negative_log_density(features, **fitted).max()


def degenerate():
    features, label = clusters()
    constant = features.clone()
    constant[:, 1] = 4
    doubled = torch.cat([features, features[:, :2]], 1)
    same = features.clone()
    same[label[:, 0] == 2] = 5
    few = slice(0, 302)
    zero = torch.zeros_like(features)
    return {
        "constant feature": (constant, label), "duplicated features": (doubled, label), "one point": (same, label),
        "two rows in a class": (features[few], label[few]), "one row in a class": (features[:301], label[:301]),
        "no row in a class": (features[:300], label[:300]), "nothing moves": (zero, label),
        "tiny": (features * 1e-12, label), "huge": (features * 1e12, label),
    }  # fmt: skip


@pytest.mark.parametrize(("features", "label"), degenerate().values(), ids=degenerate().keys())
def test_degenerate_classes_still_tell_near_from_far(features, label):
    fitted = densities(features, label)
    assert fitted["inverse"].isfinite().all()
    near = negative_log_density(features, **fitted)
    far = negative_log_density(features + 100 * max(features.abs().max().item(), 1), **fitted)
    assert near.isfinite().all()
    assert not far.isnan().any()
    assert far.min() > near.max()


def test_a_class_with_one_row_gets_the_covariance_of_all_and_one_without_any_does_not_count():
    features, label = clusters((200, 100, 1))
    fitted = densities(features, label)
    centred = torch.cat([features[label[:, 0] == k] - features[label[:, 0] == k].mean(0) for k in range(3)]).double()
    covariance = (fitted["inverse"][2].double().T @ fitted["inverse"][2].double()).inverse()
    torch.testing.assert_close(covariance, centred.T @ centred / 301, rtol=1e-4, atol=1e-4)
    without = densities(features[:300], label[:300])
    two = densities(features[:300], label[:300], classes=2)
    points = torch.randn(9, WIDTH)
    torch.testing.assert_close(negative_log_density(points, **without), negative_log_density(points, **two))


def blobs(count=90):
    generator = torch.Generator().manual_seed(3)
    label = torch.arange(count) % 3
    centers = torch.tensor([[2.0, 0.0], [-2.0, 2.0], [0.0, -3.0]])
    return centers[label] + 0.4 * torch.randn(count, 2, generator=generator), label


def factory():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def test_layers_of_a_trained_network_obey_the_spectral_norm():
    x, label = blobs()
    method = Ddu(spectral_norm=0.9, training=NetworkTraining(epochs=60, learning_rate=0.02))
    predictor = method.fit(factory, (x, label), progress=False)
    base = predictor.base
    for layer in (base[0], base[2]):
        assert torch.linalg.matrix_norm(layer.weight, ord=2) < 0.9 * 1.0001
    prediction, far = predictor.predict(x), predictor.predict(x + 50)
    assert (prediction.label == label).float().mean() > 0.95
    assert far.epistemic.min() > prediction.epistemic.max()


def test_a_spectral_norm_needs_a_factory():
    with pytest.raises(SettingsError, match="function that builds the network"):
        Ddu(spectral_norm=1.0).fit(factory(), blobs(), progress=False)
    with pytest.raises(SettingsError, match="spectral_norm > 0"):
        Ddu(spectral_norm=0.0)


def test_covariances_that_would_not_fit_in_memory_are_refused(monkeypatch):
    features, label = clusters()
    monkeypatch.setattr(ddu, "LARGEST", CLASSES * WIDTH**2 - 1)
    with pytest.raises(SettingsError, match="3 classes of 3 features need 27; choose a narrower layer"):
        densities(features, label)
