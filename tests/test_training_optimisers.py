"""Optimisers against those of PyTorch, step by step."""

import pytest
import torch
from torch import nn

from splitpoint.training import Adam, Sgd

RATES = [0.1, 0.05, 0.2, 0.0, 0.1]


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4, 5), (3, 1, 5), (2,))]


def loss(own):
    return (own[0] * own[1]).square().sum() + own[2].exp().sum()


def theirs(kind, **settings):
    own = parameters()
    optimiser = kind(own, lr=1.0, **settings)
    for rate in RATES:
        optimiser.zero_grad()
        loss(own).backward()
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
    return own


def ours(kind, *args, **settings):
    own = parameters()
    optimiser = kind(iter(own), *args, **settings)
    for rate in RATES:
        optimiser.clear()
        loss(own).backward()
        optimiser.step(rate)
    return own


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam(decay):
    expected = theirs(torch.optim.Adam, weight_decay=decay)
    torch.testing.assert_close(ours(Adam, decay, decoupled=False), expected)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam_with_decoupled_decay(decay):
    expected = theirs(torch.optim.AdamW, weight_decay=decay)
    torch.testing.assert_close(ours(Adam, decay, decoupled=True), expected)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_sgd(decay):
    expected = theirs(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=decay)
    torch.testing.assert_close(ours(Sgd, decay), expected)


@pytest.mark.parametrize("make", [lambda own: Adam(own, decoupled=False), Sgd])
def test_parameters_without_a_gradient_stay(make):
    own = parameters()
    before = own[2].detach().clone()
    optimiser = make(own)
    own[0].square().sum().backward()
    optimiser.step(0.1)
    assert torch.equal(own[2], before)
    assert not torch.equal(own[0], parameters()[0])


def test_gradients_are_forgotten():
    own = parameters()
    loss(own).backward()
    Adam(own, decoupled=False).clear()
    assert all(parameter.grad is None for parameter in own)
