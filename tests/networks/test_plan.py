"""Plans: a fit depends on its seed alone, whatever the global random state, and a stack is its members."""

import pytest
import torch
from torch import nn

from splitpoint.baselines import DeepEnsemble, EvidentialRegression, Gaussian, McDropout, SqrOc


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
