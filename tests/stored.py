"""Small models to save and to load, and what it means that they answer the same."""

import torch
from torch import nn

import splitpoint as sp

FAST = {"epochs": 2, "folds": 0}


class Net(nn.Module):
    """A small model with a method for its features."""

    def __init__(self, outputs=1, width=6):
        super().__init__()
        self.hidden, self.fc = nn.Linear(3, width), nn.Linear(width, outputs)

    def encode(self, x):
        return self.hidden(x).tanh()

    def forward(self, x):
        return self.fc(self.encode(x))


class Named(Net):
    """A model that returns a dict of two outputs."""

    def forward(self, x):
        return {"depth": super().forward(x), "other": x}


def task(rows=60, outputs=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return x, x.sum(1, keepdim=True) + torch.randn(rows, outputs, generator=generator)


def labels(rows=60, classes=3, seed=1):
    x, y = task(rows, seed=seed)
    return x, (y[:, 0] > 0).long() + (y[:, 0] > 1).long() * (classes > 2)


def regression(model=None, outputs=1, calibrated=False, confidence_level=0.9, **settings):
    method = sp.SplitPointRegressor(confidence_level, **FAST | settings)
    calibration = task(80, outputs, seed=2) if calibrated else None
    return method.fit(
        Net(outputs) if model is None else model, task(outputs=outputs), calibration=calibration, progress=False
    )


def classification(model=None, classes=3, calibrated=False, **settings):
    method = sp.SplitPointClassifier(**{"epochs": 2} | settings)
    calibration = labels(80, classes, seed=2) if calibrated else None
    return method.fit(
        Net(classes) if model is None else model, labels(classes=classes), calibration=calibration, progress=False
    )


def saved(uq, folder):
    path = folder / "uq.safetensors"
    uq.save(path)
    return path


def assert_same_prediction(one, other):
    assert type(one) is type(other)
    for name, value in vars(one).items():
        found = getattr(other, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, found), name
            assert value.dtype == found.dtype
        elif name == "conformity":
            assert (value is None) == (found is None)
            assert value is None or torch.equal(one.sets(0.8), other.sets(0.8))
        elif name != "reference":
            assert value == found, name
    assert (one.reference is None) == (other.reference is None)
    if one.reference is not None:
        assert torch.equal(one.flagged, other.flagged)
        assert torch.equal(one.percentile, other.percentile)
