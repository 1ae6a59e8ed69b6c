"""Nested inputs, ``((a, b), y)`` and dicts, reach the model as its forward takes them, in fits and attacks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import splitpoint as sp
from splitpoint.attacks import fgsm
from splitpoint.baselines import METHODS
from splitpoint.batches import Batch, flattened, item_of, labelled
from splitpoint.errors import DataError
from splitpoint.networks.training import feed_of

ROWS = 40


class Two(nn.Module):
    """Two branches, fused by their mean."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.two = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def fused(self, a, b):
        parts = [net(x) for net, x in ((self.one, a), (self.two, b)) if x is not None]
        return sum(parts) / len(parts)


class Apart(Two):
    def forward(self, a, b):
        return self.fused(a, b)


class Optional(Two):
    def forward(self, a=None, b=None):
        return self.fused(a, b)


class Together(Two):
    def forward(self, pair):
        return self.fused(*pair)


class Scaled(Two):
    def forward(self, pair, scale=1.0):
        a, b = pair
        return self.fused(a, b) * scale


class Anything(Two):
    def forward(self, *inputs):
        return self.fused(*inputs)


class Named(Two):
    def forward(self, inputs):
        return self.fused(inputs["a"], inputs["b"])


NESTED = (Apart, Optional, Together, Scaled, Anything)
MAPPED = (Apart, Optional, Named)


def rows(count=ROWS):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(2, (count,), generator=generator)
    a, b = (label[:, None] + 0.7 * torch.randn(count, width, generator=generator) for width in (3, 4))
    return a, b, label


A, B, Y = rows()


class Pairs(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return (A[row], B[row]), Y[row]


def parts(make):
    return [make(*(own[start : start + 10] for own in (A, B, Y))) for start in range(0, ROWS, 10)]


FORMS = {
    "whole arrays": lambda: ((A, B), Y),
    "whole lists": lambda: [[A, B], Y],
    "batches": lambda: parts(lambda a, b, y: ((a, b), y)),
    "lists": lambda: parts(lambda a, b, y: [[a, b], y]),
    "data set": Pairs,
    "loader": lambda: DataLoader(Pairs(), batch_size=10),
}
DICTS = {
    "whole arrays": lambda: ({"a": A, "b": B}, Y),
    "batches": lambda: parts(lambda a, b, y: ({"a": a, "b": b}, y)),
    "one mapping": lambda: {"a": A, "b": B, "labels": Y},
    "batches of one mapping": lambda: parts(lambda a, b, y: {"a": a, "b": b, "labels": y}),
}
CASES = [(net, form) for net in NESTED for form in FORMS.values()] + [
    (net, form) for net in MAPPED for form in DICTS.values()
]
CASE_NAMES = [f"{net.__name__}, {form}" for net in NESTED for form in FORMS] + [
    f"{net.__name__}, dicts, {form}" for net in MAPPED for form in DICTS
]


def expected(model):
    with torch.no_grad():
        return model.eval().fused(A, B)


@pytest.mark.parametrize(("net", "form"), CASES, ids=CASE_NAMES)
def test_nested_inputs_reach_the_model_as_its_forward_takes_them(net, form):
    torch.manual_seed(0)
    model, found = net(), []
    for batch in labelled(form(), 16):
        moved = batch.to(model)
        with torch.no_grad():
            found.append(model(*moved.args, **moved.kwargs))
    torch.testing.assert_close(torch.cat(found), expected(model))


@pytest.mark.parametrize("net", [Apart, Optional, Together], ids=lambda net: net.__name__)
@pytest.mark.parametrize("form", ["whole arrays", "batches", "loader"])
def test_a_fit_and_predictions_take_nested_inputs(net, form):
    torch.manual_seed(0)
    model = net()
    clf = sp.SplitPointClassifier(epochs=1).fit(model, FORMS[form](), progress=False)
    assert clf.layer == "one.2:input + two.2:input"
    logits = expected(model)
    for given in (FORMS[form](), [((A, B), Y)], [((A, B),)]):
        found = clf.predict(given)
        torch.testing.assert_close(found.base_probs, logits.softmax(1))
    if net is not Together:
        torch.testing.assert_close(clf.predict([(A, B)]).support, found.support)


def test_a_missing_modality_may_be_nested():
    torch.manual_seed(0)
    clf = sp.SplitPointClassifier(epochs=1).fit(Together(), ((A, B), Y), progress=False)
    found = clf.predict([((A, None), Y)])
    assert found.missing[0].tolist() == [False, True]
    torch.testing.assert_close(clf((A, None)).support, found.support)


def test_a_batch_is_not_touched_where_its_inputs_are_not_nested():
    batch = Batch((A, B), {}, Y)
    assert batch.arranged(Apart()) is batch


def test_columns_come_together_as_they_were():
    item = {"inputs": {"a": A, "b": (B, Y)}, "labels": Y}
    columns = flattened(item)
    assert list(columns) == [("inputs", "a"), ("inputs", "b", 0), ("inputs", "b", 1), "labels"]
    again = item_of(columns)
    assert again["inputs"]["b"][0] is B
    assert again.keys() == item.keys()


@pytest.mark.parametrize("form", ["whole arrays", "batches"])
@pytest.mark.parametrize("net", [Apart, Together], ids=lambda net: net.__name__)
def test_members_of_a_stack_see_rows_that_belong_together(net, form):
    feed = feed_of([FORMS[form]()] * 2, 8, net(), [0, 1])
    seen = 0
    for batch in feed.epoch():
        a, b = batch.args if net is Apart else batch.args[0]
        assert a.shape[:2] == b.shape[:2] == batch.target.shape
        for member in range(2):
            for own_a, own_b, own_y in zip(a[member], b[member], batch.target[member], strict=True):
                place = (own_a == A).all(1).nonzero().item()
                assert torch.equal(B[place], own_b)
                assert int(Y[place]) == int(own_y)
                seen += 1
    assert seen == 2 * ROWS


@pytest.mark.parametrize("form", ["whole arrays", "loader"])
@pytest.mark.parametrize("net", [Apart, Together], ids=lambda net: net.__name__)
@pytest.mark.parametrize("name", ["deep_ensemble", "mc_dropout"])
def test_ensembles_learn_from_nested_batches(name, net, form):
    more = {"members": 2} if name == "deep_ensemble" else {"passes": 2}
    method = METHODS[name].method(epochs=30, batch_size=10, learning_rate=1e-2, **more)
    fitted = method.fit(net, FORMS[form](), progress=False)
    found = fitted.predict(FORMS[form]())
    assert float((found.label == Y).float().mean()) > 0.8
    assert torch.equal(fitted.predict([((A, B), Y)]).label, found.label)


@pytest.mark.parametrize("form", ["whole arrays", "batches"])
@pytest.mark.parametrize("net", [Apart, Together], ids=lambda net: net.__name__)
def test_refitted_copies_learn_from_nested_batches(net, form):
    torch.manual_seed(0)
    model = net()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(20):
        optimiser.zero_grad()
        F.cross_entropy(model.fused(A, B), Y).backward()
        optimiser.step()
    method = sp.SplitPointClassifier(epochs=1, residuals="refit")
    clf = method.fit(model, FORMS[form](), progress=False)
    assert clf.predict(((A, B), Y)).sets(0.8).shape == (ROWS, 2)


# Attacks


def gradients(model, a, b):
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    F.cross_entropy(model.fused(a, b), Y, reduction="sum").backward()
    return a.grad, b.grad


@pytest.mark.parametrize("net", [Apart, Together, Named], ids=lambda net: net.__name__)
def test_every_input_takes_its_own_step(net):
    torch.manual_seed(0)
    model = net()
    x = {"a": A, "b": B} if net is Named else (A, B)
    attacked = fgsm(model, x, Y, 0.1, valid=None)
    assert type(attacked) is type(x)
    ways = attacked.values() if net is Named else attacked
    for moved, own, gradient in zip(ways, (A, B), gradients(model, A, B), strict=True):
        torch.testing.assert_close(moved, own + 0.1 * gradient.sign())


def test_steps_and_ranges_may_differ_between_inputs():
    torch.manual_seed(0)
    model = Apart()
    one, two = gradients(model, A, B)
    a, b = fgsm(model, (A, B), Y, {0: 0.1, 1: 0.5}, valid={0: (0.0, 1.0), 1: None})
    torch.testing.assert_close(a, (A + 0.1 * one.sign()).clamp(0, 1))
    torch.testing.assert_close(b, B + 0.5 * two.sign())
    with pytest.raises(DataError, match=r"Expected epsilon and valid for every input, but got none for \['b'\]"):
        fgsm(Named(), {"a": A, "b": B}, Y, {"a": 0.1}, valid=None)


def test_integers_are_left_alone():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.net = nn.Embedding(5, 2), nn.Linear(3, 2)

        def forward(self, x, tokens):
            return self.net(x) + self.words(tokens)

    torch.manual_seed(0)
    tokens = torch.arange(ROWS) % 5
    x, same = fgsm(Tokens(), (A, tokens), Y, 0.1, valid=None)
    assert same is tokens
    assert not torch.equal(x, A)
    with pytest.raises(DataError, match=r"Expected floating-point inputs to move, but got torch.int64"):
        fgsm(Tokens(), (tokens, tokens), Y, 0.1)


def test_an_input_that_the_loss_does_not_depend_on_stays():
    model = Optional()
    model.two = None
    model.fused = lambda a, b: model.one(a)  # noqa: ARG005
    a, b = fgsm(model, (A, B), Y, 0.1, valid=None)
    assert torch.equal(b, B)
    assert not torch.equal(a, A)
