"""Small problems and fitted methods that the tests of the methods share; each is fitted once in a process."""

from dataclasses import dataclass, fields
from functools import cache

import pytest
import torch
from torch import nn

from splitpoint import SplitPointClassifier, SplitPointRegressor
from splitpoint.baselines import METHODS, train_network

ROWS = 128
LEVELS = (0.5, 0.95)
EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

# Problems: what every method is fitted on, once


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Squeezed(nn.Module):
    """A network with outputs (N,)."""

    def __init__(self):
        super().__init__()
        self.body = vector_network(1)

    def forward(self, x):
        return self.body(x).squeeze(-1)


def vector_network(outputs):
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


def map_network(outputs):
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, outputs, 1))


def numbers(x, seed):
    clean = torch.stack([x[:, 0].sin() + x[:, 1], 10 + 5 * x[:, 2]], 1)
    return clean + 0.3 * drawn(seed, *clean.shape)


def classes(x):
    return (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


@dataclass(frozen=True)
class Problem:
    """A network to build, data to fit on and to calibrate with, inputs to predict, and how to train."""

    task: str
    factory: object
    data: tuple
    calibration: tuple
    fresh: torch.Tensor
    epochs: int = 16
    batch_size: int = 32

    @property
    def output(self):
        return self.factory()(self.fresh)


def vectors(seed, target, rows=ROWS):
    x = drawn(seed, rows, 3)
    return x, target(x, seed + 100)


def maps(seed, target, rows=24):
    x = drawn(seed, rows, 2, 5, 4)
    return x, target(x, seed + 100)


def map_numbers(x, seed):
    return torch.stack([x[:, 0] + x[:, 1], 3 * x[:, 0]], 1) + 0.3 * drawn(seed, len(x), 2, 5, 4)


def map_labels(x, seed):
    label = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return torch.where(drawn(seed, *label.shape) > 1.5, -100, label)


VECTOR_TARGETS = {
    "scalar": ("regression", lambda: vector_network(1), lambda x, seed: numbers(x, seed)[:, :1]),
    "flat": ("regression", lambda: vector_network(1), lambda x, seed: numbers(x, seed)[:, 0]),
    "squeezed": ("regression", Squeezed, lambda x, seed: numbers(x, seed)[:, 0]),
    "pair": ("regression", lambda: vector_network(2), numbers),
    "classes": ("classification", lambda: vector_network(3), lambda x, _: classes(x)),
}
MAP_TARGETS = {
    "maps": ("regression", lambda: map_network(2), map_numbers),
    "label_maps": ("classification", lambda: map_network(3), map_labels),
}
NO_MAPS = {"laplace"}


def sequences():
    """Outputs (N, T, D) of linear layers alone."""
    parts = [(drawn(seed, 48, 6, 3), drawn(seed + 1, 48, 6, 1)) for seed in (1, 3)]
    return Problem("regression", lambda: vector_network(1), *parts, drawn(5, 4, 6, 3))


@cache
def problem(name):
    if name == "sequences":
        return sequences()
    if name in VECTOR_TARGETS:
        task, factory, target = VECTOR_TARGETS[name]
        parts = vectors(1, target), vectors(2, target), drawn(3, 12, 3)
        return Problem(task, factory, *parts)
    task, factory, target = MAP_TARGETS[name]
    return Problem(task, factory, maps(1, target), maps(2, target), drawn(3, 5, 2, 5, 4), epochs=12, batch_size=4)


@cache
def base(name):
    own = problem(name)
    if name == "sequences":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return own.factory().eval()
    return train_network(
        own.factory, own.data, epochs=own.epochs, batch_size=own.batch_size, learning_rate=1e-2, progress=False
    )


HEADS = {"regression": SplitPointRegressor, "classification": SplitPointClassifier}


def settings_of(name, task):
    """Names of the settings that a method has for a task."""
    own = HEADS[task] if name.startswith("splitpoint") else METHODS[name].method
    return [f.name for f in fields(own)]


def method(name, own, **changes):
    """The method with short training, as far as it has such settings; `changes` it must have."""
    recipe = METHODS[name]
    wanted = {"confidence_level": LEVELS, "epochs": 4}  # of heads
    if recipe.start == "factory":
        wanted |= {"epochs": own.epochs, "batch_size": own.batch_size, "learning_rate": 1e-2, "members": 3}
    known = settings_of(name, own.task)
    return recipe(**{key: value for key, value in wanted.items() if key in known} | {"task": own.task} | changes)


def post_hoc(name):
    return METHODS[name].start == "model"


def calibrated(name, own):
    """Calibration data where the method needs them."""
    return own.calibration if own.task in METHODS[name].held_out else None


def fit(name, problem_name, model=None, *, data=None, seed=0, **changes):
    own = problem(problem_name)
    start = model or (base(problem_name) if post_hoc(name) else own.factory)
    return method(name, own, **changes).fit(
        start, own.data if data is None else data, calibration=calibrated(name, own), seed=seed, progress=False
    )


@cache
def fitted(name, problem_name):
    return fit(name, problem_name)


def cases(problems):
    """Methods with the problems that they can solve, in a fixed order."""
    return [
        (name, own)
        for own in problems
        for name, kind in METHODS.items()
        if {**VECTOR_TARGETS, **MAP_TARGETS}[own][0] in kind.tasks and not (own in MAP_TARGETS and name in NO_MAPS)
    ]


def over(problems):
    found = cases(problems)
    return pytest.mark.parametrize(("name", "own"), found, ids=[f"{name}-{own}" for name, own in found])


every = over([*VECTOR_TARGETS, *MAP_TARGETS])
each = over(["scalar", "classes"])
regressions = over(["scalar", "flat", "squeezed", "pair", "maps"])
classifications = over(["classes", "label_maps"])
TRAINED = [name for name in METHODS if not post_hoc(name)]
POST_HOC = [name for name in METHODS if post_hoc(name)]


def only(names, problems=("scalar", "classes")):
    found = [case for case in cases(problems) if case[0] in names]
    return pytest.mark.parametrize(("name", "own"), found, ids=[f"{name}-{own}" for name, own in found])


def tensors(prediction):
    """Every tensor of a prediction by name, its sets among them where it has any."""
    values = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
    level = getattr(prediction, "set_level", None)
    values |= {} if level is None else {"sets": prediction.sets(level)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def assert_same(one, other, **tolerance):
    one, other = tensors(one), tensors(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance)


def differ(one, other):
    return any(not torch.equal(value, tensors(other)[name]) for name, value in tensors(one).items())


def fails(kind, match):
    return pytest.raises(kind, match=match)
