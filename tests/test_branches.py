"""Branches: the last layers that an output is put together from are all found, and nothing else is."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp
from branch_models import FUSIONS, Late, branch, inputs, labelled_rows, trained
from feature_models import Net
from splitpoint.baselines import METHODS
from splitpoint.batches import Batch
from splitpoint.branches import Branch
from splitpoint.features import open_tap

N = 6
ALL = ("image.2:input", "audio.2:input", "text.2:input")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def chosen(model, *args, key=None, context=False):
    return open_tap(model, None, Batch(args, {}, None), key, context=context)[0]


@pytest.mark.parametrize("fuse", FUSIONS.values(), ids=FUSIONS.keys())
@pytest.mark.parametrize("no_grad", [False, True], ids=["", "without gradients"])
def test_every_branch_is_found_however_they_are_fused(fuse, no_grad):
    tap = chosen(Late(fuse, no_grad), *inputs())
    assert tap.names == ALL
    assert tap.branches == (Branch("image.2", 8), Branch("audio.2", 8), Branch("text.2", 8))
    assert tap.reason == "the model's output is put together from what these 3 layers give"


def test_branches_that_a_last_layer_joins_are_read_there():
    tap = chosen(Late(lambda net, parts: net.head(torch.cat(parts, 1))), *inputs())
    assert tap.names == ("head:input",)
    assert tap.branches == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_branches_of_frozen_networks_of_any_precision_are_found(dtype):
    model = Late().to(dtype).requires_grad_(False)
    assert chosen(model, *(x.to(dtype) for x in inputs())).names == ALL


def test_what_layers_before_the_last_one_of_each_branch_read_is_context():
    tap, reading = open_tap(Late(), None, Batch(inputs(), {}, None), context=True)
    assert tap.context == ("image.0:input", "audio.0:input", "text.0:input")
    assert [own.context for own in tap.branches] == [(4,), (5,), (6,)]
    torch.testing.assert_close(reading.context, torch.cat(inputs(), 1))


def test_layers_lists_and_marks_every_branch():
    table = sp.layers(Late(), *inputs())
    assert table.chosen == " + ".join(ALL)
    assert [row.name for row in table if row.chosen] == ["image.2", "audio.2", "text.2"]
    assert str(table).splitlines()[-1] == f"layer=None reads {table.chosen}: {table.reason}"


# Networks of other kinds, whose choice is what it would be for one branch, or all that are added up

VECTOR = (N, 4)


def residual(m, x):
    h = m.stem(x)
    h = h + m.first(h).relu()
    return h + m.second(h).relu()


def in_place_residual(m, x):
    h = m.stem(x)
    h += m.first(h).relu()
    h += m.second(h).relu()
    return h * 2


def exits(m, x):
    h = m.stem(x).relu()
    deep = m.second(h).relu()
    return (m.fc(h) + m.last(deep)) / 2


def gated(m, x):
    h = m.stem(x).relu()
    share = m.second(x).softmax(1)
    return share[:, :1] * m.fc(h) + share[:, 1:2] * m.last(x)


def unet(m, x):
    fine = m.stem(x).relu()
    coarse = m.first(F.max_pool2d(fine, 2)).relu()
    up = F.interpolate(coarse, scale_factor=2.0)
    return m.fc(fine + up).sigmoid()


def unrolled(m, x, steps):
    h, found = x, []
    for _ in range(steps):
        h = m.first(h).tanh()
        found.append(m.fc(h))
    return torch.stack(found).mean(0)


def vectors():
    return {name: nn.Linear(4, 4) for name in ("stem", "first", "second", "last", "fc")}


def maps():
    return {
        "stem": nn.Conv2d(3, 4, 3, padding=1),
        "first": nn.Conv2d(4, 4, 3, padding=1),
        "fc": nn.Conv2d(4, 1, 1),
    }


CASES = {
    "a residual network": (residual, vectors, VECTOR, ("second:input",)),
    "a residual network, in place": (in_place_residual, vectors, VECTOR, ("second:input",)),
    "exits that are averaged": (exits, vectors, VECTOR, ("fc:input", "last:input")),
    "a mixture with a gate": (gated, vectors, VECTOR, ("fc:input", "last:input")),
    "a U-Net with skips that are added": (unet, maps, (N, 3, 8, 8), ("fc:input",)),
    "mean and spread of one layer": (
        lambda m, x: torch.cat([m.fc(h := m.stem(x).relu()), F.softplus(m.last(h))], 1),
        vectors,
        VECTOR,
        ("last:input",),
    ),
    "wide and deep": (
        lambda m, x: m.fc(x) + m.last(m.stem(x).relu()),
        vectors,
        VECTOR,
        ("fc:input", "last:input"),
    ),
    "a few steps": (lambda m, x: unrolled(m, x, 3), vectors, VECTOR, ("fc:input@0", "fc:input@1", "fc:input")),
    "many steps": (lambda m, x: unrolled(m, x, 17), vectors, VECTOR, ("fc:input",)),
    "a layer whose result is multiplied away": (
        lambda m, x: m.fc(x) * 0 + m.last(m.stem(x).relu()) * 2,
        vectors,
        VECTOR,
        ("last:input",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_layers_that_are_read_of_other_networks(case):
    run, layers, shape, names = case
    assert chosen(Net(run, **layers()), torch.randn(shape)).names == names


def test_both_calls_of_a_siamese_network_are_read():
    model = Net(
        lambda m, a, b: (m.fc(m.hidden(a)) - m.fc(m.hidden(b))).abs(), hidden=nn.Linear(4, 8), fc=nn.Linear(8, 2)
    )
    a, b = torch.randn(N, 4), torch.randn(N, 4)
    tap, reading = open_tap(model, None, Batch((a, b), {}, None))
    assert tap.names == ("fc:input@0", "fc:input")
    assert [own.name for own in tap.branches] == ["fc@0", "fc"]
    for features, x in zip(reading.features, (a, b), strict=True):
        torch.testing.assert_close(features, model.hidden(x).detach())


def test_only_branches_of_the_entry_that_is_read_count():
    def run(m, a, b):
        one, two = m.fc(a), m.last(b)
        return {"fused": one + two, "own": one * 2}

    model = Net(run, **vectors())
    args = torch.randn(N, 4), torch.randn(N, 4)
    assert chosen(model, *args, key="fused").names == ("fc:input", "last:input")
    assert chosen(model, *args, key="own").names == ("fc:input",)


def test_a_branch_with_other_rows_than_the_output_is_left_out():
    model = Net(lambda m, x: m.fc(x) + m.last(x[:1]), **vectors())
    assert chosen(model, torch.randn(N, 4)).names == ("fc:input",)


# Scores see every branch


def regression_rows():
    *x, label = labelled_rows()
    return (*x, F.one_hot(label, 3).float() + 0.1 * torch.randn(len(label), 3))


def moved(x):
    """The inputs with one of them far away, for each."""
    return [tuple(own + 100 if place == number else own for place, own in enumerate(x)) for number in range(len(x))]


@pytest.mark.parametrize("fuse", ["sum", "stacked mean", "by weights"])
def test_moving_any_modality_moves_the_score_of_a_classifier(fuse):
    data = labelled_rows()
    clf = sp.SplitPointClassifier(epochs=1).fit(trained(Late(FUSIONS[fuse]), data), data, progress=False)
    for x in moved(data[:3]):
        assert (clf(*x).support > clf(*data[:3]).support.max()).all()


def test_moving_any_modality_moves_the_score_of_a_rival_that_reads_features():
    data = labelled_rows()
    ddu = METHODS["ddu"].method().fit(trained(Late(), data), data, progress=False)
    for x in moved(data[:3]):
        assert (ddu(*x).support > ddu(*data[:3]).support.max()).all()


def test_moving_any_modality_moves_the_scores_of_a_regressor():
    data = regression_rows()
    uq = sp.SplitPointRegressor(epochs=1, folds=0).fit(Late(), data, progress=False)
    before = uq(*data[:3])
    for x in moved(data[:3]):
        after = uq(*x)
        for name in ("support", "epistemic", "total"):
            assert (getattr(after, name) > getattr(before, name).max()).all(), name


def test_the_predictor_says_which_layers_it_reads_and_why():
    data = labelled_rows()
    clf = sp.SplitPointClassifier(epochs=1).fit(Late(), data, progress=False)
    assert clf.layer == " + ".join(ALL)
    assert f"layer: {clf.layer} (the model's output is put together from what these 3 layers give)" in repr(clf)


def test_wide_features_of_branches_are_projected_apart():
    """Random mixtures of all would leave nothing of the others where one is missing."""
    torch.manual_seed(1)
    model = Net(
        lambda m, a, b=None: m.one(a) if b is None else m.one(a) + m.two(b), one=branch(4, 1500), two=branch(5, 1500)
    )
    *_, label = labelled_rows()
    a, b = labelled_rows()[:2]
    clf = sp.SplitPointClassifier(epochs=1).fit(model, (a, b, label), progress=False)
    near, far = clf(a, None).support, clf(a + 100, None).support
    assert (far > near.max()).all()
