"""Faults that are planted are named on the page, and a healthy model is green.

The limits of the verdict were tuned on other tasks and networks (tanh, normal noise, mixed products) with seeds from
1,000; none of the tasks, networks and seeds of this file was looked at before. The noise of the regression task was
made less even once, since shuffled scores do no harm where all are worth nothing; the limits stayed as they were.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp
from problems import drawn

ROWS = {"train": 800, "calibration": 600, "test": 1200}


def numbers(seed, rows):
    """Three inputs; noise with heavy tails that grows with the third."""
    x = drawn(seed, rows, 3)
    noise = torch.distributions.Laplace(0.0, 1.0).icdf(
        torch.rand(rows, generator=torch.Generator().manual_seed(seed + 1))
    )
    return x, (x[:, 0].abs() + (2 * x[:, 1]).sin() + (0.1 + 0.5 * x[:, 2].abs()) * noise)[:, None]


def classes(seed, rows):
    """Three rings that overlap."""
    x = drawn(seed, rows, 3)
    radius = x[:, :2].norm(dim=1) + 0.35 * drawn(seed + 1, rows)
    return x, (radius > 0.8).long() + (radius > 1.5).long()


TASKS = {"regression": (numbers, 1, F.mse_loss), "classification": (classes, 3, F.cross_entropy)}


def trained(data, outputs, loss, seed, *, width=24, steps=300):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
        )
    x, y = data
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for rows in torch.randint(len(x), (steps, 100), generator=torch.Generator().manual_seed(seed)):
        optimiser.zero_grad()
        loss(net(x[rows]), y[rows]).backward()
        optimiser.step()
    return net.eval()


class Shuffled(nn.Module):
    """A stand-in for a predictor's own answers, with total scores of other rows."""

    def __init__(self, uq):
        super().__init__()
        self.answer, self.generator = uq.forward, torch.Generator().manual_seed(0)

    def forward(self, x):
        found = self.answer(x)
        return replace(found, total=found.total[torch.randperm(len(x), generator=self.generator)])


def judged(task, fault, seed):
    """The verdict on a model with a fault."""
    make, outputs, loss = TASKS[task]
    data = {name: make(10 * seed + 3 * place + 5_000, rows) for place, (name, rows) in enumerate(ROWS.items())}
    more = {}
    if fault == "memorised":
        data["train"] = tuple(part[:100] for part in data["train"])
        more = {"width": 96, "steps": 800}
    net = trained(data["train"], outputs, loss, seed, **more)
    if fault == "leaked":
        data["calibration"] = tuple(part[:600] for part in data["train"])
    if fault == "tested on training rows":
        data["test"] = data["train"]
    if fault == "shifted":
        data["test"] = (1.6 * data["test"][0] + 0.7, data["test"][1])
    if fault == "few":
        data["test"] = tuple(part[:15] for part in data["test"])
    settings = {"epochs": 50 if fault == "shuffled" else 15}  # only scores that are worth something can be spoilt
    regressor = sp.SplitPointRegressor(confidence_level=0.9, **settings)
    method = regressor if outputs == 1 else sp.SplitPointClassifier(**settings)
    uq = method.fit(net, data["train"], calibration=data["calibration"], seed=seed, progress=False)
    uq.set_threshold(data["calibration"])
    if fault == "shuffled":
        uq.forward = Shuffled(uq).forward
    ood = 2.5 * make(seed, 200)[0]
    return sp.verdict(uq, data["test"], data["train"], ood, calibration=data["calibration"], cost=False)


EITHER = {"regression": ("total_against_width",), "classification": ("total_against_entropy",)}
NAMED = {
    "memorised": ("memorised",),
    "leaked": ("calibration_among_train", "fit_calibration_rows"),
    "tested on training rows": ("test_among_train",),
    "shifted": ("shift", "flag_rate"),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("fault", [*NAMED, "shuffled"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_a_planted_fault_is_named(task, fault, seed):
    found = judged(task, fault, seed)
    lights = {one.name: one.light for one in found.findings}
    for name in NAMED.get(fault, EITHER[task]):
        assert lights[name] in ("red", "yellow"), name
    assert found.light in ("red", "yellow")
    named = [one for one in found.findings if one.name in NAMED.get(fault, EITHER[task])]
    assert all(any(one.statement in reason for reason in found.reasons) for one in named)


@pytest.mark.parametrize("task", TASKS)
def test_with_few_rows_nobody_can_tell(task):
    found = judged(task, "few", 1)
    assert found.light == "unknown"
    assert found.headline == "Nobody can tell with so few rows."
    assert all("so few rows" in reason for reason in found.reasons)


HEALTHY = 20


@pytest.mark.parametrize("task", TASKS)
def test_a_healthy_model_is_green(task):
    assert judged(task, "", 1).light == "green"


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_healthy_model_is_green_but_for_one_seed_of_twenty(task):
    lights = [judged(task, "", seed).light for seed in range(HEALTHY)]
    assert lights.count("green") >= HEALTHY - 1, lights
