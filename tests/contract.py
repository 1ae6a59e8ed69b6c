"""The two methods on small problems, with the settings that the contract is checked for."""

import pytest
import torch
from torch import nn

import splitpoint as sp

ROWS = 160


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(outputs, seed=0, inputs=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs)).eval()


def regression_data(model, seed=1, rows=ROWS):
    x = drawn(seed, rows, 3)
    with torch.no_grad():
        return x, model(x) + drawn(seed + 1, rows, 1)


def classification_data(model, seed=1, rows=ROWS):
    x = drawn(seed, rows, 3)
    with torch.no_grad():
        probs = model(x).softmax(1)
    return x, torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed)).flatten()


def regression_case(method):
    model = network(1)
    return method, model, regression_data(model)


def classification_case(method):
    model = network(3)
    return method, model, classification_data(model)


CASES = {
    "regressor": lambda: regression_case(sp.SplitPointRegressor(epochs=3, folds=0)),
    "regressor_folds": lambda: regression_case(sp.SplitPointRegressor(epochs=2, folds=2)),
    "regressor_paper": lambda: regression_case(sp.SplitPointRegressor.paper(epochs=3)),
    "classifier": lambda: classification_case(sp.SplitPointClassifier(epochs=3)),
    "classifier_free": lambda: classification_case(sp.SplitPointClassifier(epochs=3, mars="free")),
    "classifier_paper": lambda: classification_case(sp.SplitPointClassifier.paper(epochs=3)),
}
every = pytest.mark.parametrize("case", CASES)
methods = pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])


def made(case):
    return CASES[case]()


def fitted(case, **arguments):
    method, model, data = made(case)
    return method.fit(model, data, progress=False, **arguments), model, data
