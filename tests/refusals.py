"""Small problems, and the check that bad input gets one sentence with its three parts."""

import pytest
import torch
from torch import nn

import splitpoint as sp

REGRESSOR = sp.SplitPointRegressor(epochs=2, folds=0)
CLASSIFIER = sp.SplitPointClassifier(epochs=2)
both = pytest.mark.parametrize("task", ["regression", "classification"])


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(outputs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs)).eval()


def case(task, rows=60):
    x = drawn(0, rows, 3)
    if task == "regression":
        return REGRESSOR, network(1), x, drawn(1, rows, 1)
    return CLASSIFIER, network(3), x, torch.arange(rows) % 3


class Hidden(nn.Module):
    """Features with a NaN that the output does not show."""

    def __init__(self, outputs):
        super().__init__()
        self.body, self.last = nn.Linear(3, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return torch.nan_to_num(self.last(self.body(x)))


def refused(kind, call, expected, came, advice=""):
    """The error of `call`, one sentence with the three parts in order."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert isinstance(caught.value, sp.SplitPointError)
    assert text.startswith("Expected ")
    assert text.endswith((".", "?"))
    assert "\n" not in text
    places = [text.find(part) for part in (expected, came, advice)]
    assert -1 not in places, text
    assert places[0] < places[1], text
    if advice:
        assert places[1] <= places[2], text
        assert ";" in text, text
    return text


def fit(method, model, data, **arguments):
    return method.fit(model, data, progress=False, **arguments)
