"""What tells a base model from another one: weights, and answers on made-up rows."""

import copy

import pytest
import torch
from torch import nn

from splitpoint.batches import Batch
from splitpoint.features import Tap
from splitpoint.fingerprint import Fingerprint, deviation, tapped
from splitpoint.likeness import Likeness


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def network(activation=nn.ReLU):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 16), activation(), nn.Linear(16, 16), activation(), nn.Linear(16, 2))


class Inside(nn.Module):
    """A network inside of another that changes its input."""

    def __init__(self, inner, scale=1.0):
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, x):
        return self.inner(self.scale * x)


def tap(model):
    place = {Inside: "inner.4:input"}.get(type(model), "4:input")
    return Tap(model, (place,), None, "")


def batch(rows=32):
    return Batch((torch.randn(rows, 3),), {}, torch.zeros(rows))


def taken(model, given=None):
    return Fingerprint.at(tap(model), Likeness.of(given or batch()))


def compared(fingerprint, model):
    return fingerprint.difference(model, tapped(tap(model)))


def changed(model, change):
    other = copy.deepcopy(model)
    with torch.no_grad():
        change(other)
    return other


def test_a_model_is_what_it_was():
    model = network()
    found = compared(taken(model), copy.deepcopy(model))
    assert (found.words, found.deviation, found.shape) == ("", 0, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model[0].weight.add_(1e-6), "the weights differ"),
        (lambda model: model.__setitem__(1, nn.Tanh()), "with the same weights its outputs or features are others, by"),
        (lambda model: model.__setitem__(1, nn.LeakyReLU(0.05)), "with the same weights its outputs or features"),
        (lambda model: model.append(nn.Linear(2, 2)), "the weights differ"),
        (lambda model: model.append(nn.Softplus()), "with the same weights its outputs or features are others"),
        (lambda model: model.append(nn.Unflatten(1, (2, 1))), "its outputs or features have another shape"),
        (lambda model: model.insert(0, nn.Flatten(0)), "it does not run on rows like those of the fit"),
    ],
    ids=["weights", "tanh", "leaky", "layer", "softplus", "shape", "broken"],
)
def test_changes_are_told_in_words(change, words):
    model = network()
    found = compared(taken(model), changed(model, change))
    assert found.words.startswith(words)
    assert "\n" not in found.words


@pytest.mark.parametrize("scale", [255.0, 1 / 255, 1.05, -1.0])
def test_inputs_in_other_units_are_seen_by_the_answers(scale):
    model = network()
    fingerprint = taken(model)
    assert compared(fingerprint, Inside(model)).words == ""
    assert "a scale of the inputs" in compared(fingerprint, Inside(model, scale)).words
    assert "a scale of the inputs" in compared(taken(Inside(model, scale)), model).words


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_another_precision_is_the_same_model_and_another_activation_is_not(dtype):
    model = network()
    fingerprint = taken(model)
    assert compared(fingerprint, copy.deepcopy(model).to(dtype)).words == ""
    other = network(nn.Tanh)
    other.load_state_dict(model.state_dict())
    assert "with the same weights" in compared(fingerprint, other.to(dtype)).words
    assert (
        "with the same weights" in compared(fingerprint, changed(model.to(dtype), lambda m: m[0].weight.mul_(2))).words
    )


class Unrepeated(nn.Module):
    """A network that rolls dice in eval mode."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({str(place): part for place, part in enumerate(network())})

    def forward(self, x):
        for part in self.inner.values():
            x = nn.functional.dropout(part(x), 0.5)
        return x


class Picky(Inside):
    """A network that takes only what it has seen."""

    def forward(self, x):
        if len(x) == 4:
            raise RuntimeError("never seen")
        return super().forward(x)


class Endless(Inside):
    """A network without a finite answer to some rows."""

    def forward(self, x):
        return super().forward(x) / (len(x) != 4)


@pytest.mark.parametrize("make", [Unrepeated, lambda: Picky(network()), lambda: Endless(network())])
def test_where_answers_cannot_be_compared_weights_and_modules_are(make):
    model = make()
    at = Tap(model, ("inner.4:input",), None, "")
    fingerprint = Fingerprint.at(at, Likeness.of(batch()))
    assert fingerprint.likeness is None
    assert fingerprint.check(model, tapped(at)).verdict == "unknown"
    other = changed(model, lambda m: m.inner.__setitem__("1" if isinstance(m.inner, nn.ModuleDict) else 1, nn.Tanh()))
    assert fingerprint.difference(other, tapped(at)).words == "its modules are others"
    other = changed(model, lambda m: next(m.parameters()).add_(1))
    assert fingerprint.difference(other, tapped(at)).words == "the weights differ"


def test_taking_one_leaves_model_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 1)).train()
    given, before, state = batch(), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert taken(model, given).likeness is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_what_autocast_a_user_is_in_makes_no_difference():
    model = network()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fingerprint = taken(model)
        assert compared(fingerprint, model).deviation == 0
    assert compared(fingerprint, model).deviation == 0


def test_large_outputs_are_kept_in_part():
    model = nn.Sequential(*[nn.Identity()] * 4, nn.Conv2d(3, 8, 3))
    given = Batch((torch.randn(8, 3, 40, 40),), {}, torch.zeros(8))
    assert [tuple(value.shape) for value in taken(model, given).seen] == [(4, 512), (4, 512)]


def test_a_deviation_is_relative_to_the_spread_and_infinite_where_numbers_are_not():
    then = torch.tensor([[0.0, 4.0]])
    assert deviation(then, then) == 0
    assert deviation(then + 1, then) == pytest.approx(1 / 4.04)
    assert deviation(then * torch.nan, then) == torch.inf
    assert deviation(then[:, :0], then[:, :0]) == 0
    assert deviation(torch.zeros(2, 1), torch.zeros(2, 1)) == 0
