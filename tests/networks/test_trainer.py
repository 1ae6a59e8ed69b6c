"""Trained networks: they learn in standard units, answer in those of the targets, and depend on their seed alone."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

from splitpoint.baselines import DeepEnsemble, EvidentialRegression, Gaussian, McDropout, SqrOc, train_network
from splitpoint.errors import SettingsError


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SETTINGS = {"epochs": 60, "learning_rate": 0.05, "batch_size": 50, "milestones": (0.6, 0.8), "progress": False}


def test_a_linear_network_is_least_squares_in_any_units():
    x = randn(300, 3)
    y = torch.cat([1e4 + 1e3 * (x @ randn(3, 1, seed=1)), 1e-3 * (x @ randn(3, 1, seed=2))], 1)
    y += randn(300, 2, seed=3) * torch.tensor([100.0, 1e-4])
    model = train_network(lambda: nn.Linear(3, 2), (x, y), **SETTINGS)
    expected = LinearRegression().fit(x.numpy(), y.numpy()).predict(x.numpy())
    np.testing.assert_allclose((model(x).numpy() - expected) / y.std(0).numpy(), 0, atol=0.02)


def test_a_linear_classifier_is_logistic_regression():
    x = randn(600, 2)
    label = torch.multinomial((x @ randn(2, 3, seed=1)).softmax(1), 1, generator=torch.Generator().manual_seed(2))[:, 0]
    model = train_network(lambda: nn.Linear(2, 3), (x, label), **SETTINGS)
    expected = LogisticRegression(C=1e6).fit(x.numpy(), label.numpy()).predict_proba(x.numpy())
    np.testing.assert_allclose(model(x).softmax(1), expected, atol=0.02)


def test_missing_targets_and_ignored_labels_do_not_count():
    x = randn(200, 2)
    y = x @ randn(2, 1, seed=1)
    y[::4] = torch.nan
    model = train_network(lambda: nn.Linear(2, 1), (x, y), **SETTINGS)
    torch.testing.assert_close(model(x), x @ randn(2, 1, seed=1), atol=0.02, rtol=0)
    label = (x[:, 0] > 0).long()
    label[::3] = -100
    model = train_network(lambda: nn.Linear(2, 2), (x, label), **SETTINGS)
    assert (model(x).argmax(1) == (x[:, 0] > 0)).double().mean() > 0.97


def test_convolutions_fold_units_too():
    x = randn(40, 2, 4, 4)
    y = 500 + 30 * x.sum(1, keepdim=True)
    model = train_network(lambda: nn.Conv2d(2, 1, 1), (x, y), **SETTINGS | {"epochs": 300})
    torch.testing.assert_close(model(x), y, atol=1.0, rtol=0)


def test_an_activation_at_the_end_leaves_targets_as_they_are():
    x = randn(300, 2)
    y = torch.sigmoid(x @ randn(2, 1, seed=1))
    model = train_network(lambda: nn.Sequential(nn.Linear(2, 1), nn.Sigmoid()), (x, y), **SETTINGS)
    torch.testing.assert_close(model(x), y, atol=0.02, rtol=0)


def test_a_last_layer_without_a_bias_is_refused():
    x = randn(20, 2)
    with pytest.raises(SettingsError, match="with a bias"):
        train_network(lambda: nn.Linear(2, 1, bias=False), (x, x[:, :1]), epochs=1, progress=False)


def test_the_seed_decides_the_network():
    x = randn(40, 2)
    first, again, other = (
        train_network(lambda: nn.Linear(2, 1), (x, x[:, :1]), epochs=1, seed=seed, progress=False) for seed in (0, 0, 1)
    )
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)


# Seeds


def factory():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))


def data(shift=0.0):
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)) + shift
    return x, x.sum(1, keepdim=True)


METHODS = [Gaussian, DeepEnsemble, EvidentialRegression, McDropout, SqrOc]


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_alone_decides_a_fit(method):
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        predictor = method(epochs=2).fit(factory, data(), seed=4, progress=False)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(predictor.predict(data()[0]).mean)
    assert torch.equal(*found)
    other = method(epochs=2).fit(factory, data(), seed=5, progress=False).predict(data()[0]).mean
    assert not torch.allclose(found[0], other)


@pytest.mark.parametrize("method", [Gaussian, DeepEnsemble, EvidentialRegression])
def test_many_fits_start_from_the_weights_of_each_fit_alone(method):
    sets, seeds = [data(), data(1.0)], [3, 9]
    settings = method(epochs=1, learning_rate=1e-9)
    many = settings.fit_many([factory] * 2, sets, seeds=seeds, progress=False)
    for own, seed, together in zip(sets, seeds, many, strict=True):
        alone = settings.fit(factory, own, seed=seed, progress=False)
        torch.testing.assert_close(together.predict(own[0]).mean, alone.predict(own[0]).mean)
