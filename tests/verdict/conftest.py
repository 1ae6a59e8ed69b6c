"""Verdicts that the tests of pages share."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from problems import drawn, fitted, problem


class Pixels(nn.Module):
    """A network of images; its name has to be escaped on a page."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))

    def forward(self, x):
        return self.body(x)


Pixels.__name__ = "Pixels<b>&</b>"


@pytest.fixture(scope="session")
def numbers_verdict():
    uq, task = fitted("splitpoint_conformal", "pair"), problem("pair")
    uq.set_threshold(task.calibration)
    found = sp.verdict(uq, task.data, train=task.data, ood=task.fresh + 4, calibration=task.calibration)
    uq.quantiles = uq.threshold = None
    return found


@pytest.fixture(scope="session")
def images_verdict():
    x, y = drawn(1, 300, 1, 8, 8), torch.arange(300) % 3
    x[torch.arange(300), 0, y] += 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Pixels()
    uq = sp.SplitPointClassifier(epochs=2).fit(
        net, (x[:100], y[:100]), calibration=(x[100:200], y[100:200]), progress=False
    )
    return sp.verdict(uq, (x[200:], y[200:]), ood=x[200:] * 4)
