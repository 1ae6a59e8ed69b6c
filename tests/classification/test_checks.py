"""What a fit of a classifier says of its classes, scores and probabilities."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp
from splitpoint.cache import Table
from splitpoint.classification.checks import calibrated, classes, ranking, rivalry, uncalibrated
from splitpoint.classification.support import Support


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rows", "verdict"), [(39, "warn"), (40, "ok"), (200, "ok")])
def test_a_class_needs_four_rows_on_average(rows, verdict):
    found = classes(Table.in_memory({"label": (torch.arange(rows) % 10)[:, None]}), 10)
    assert found.value == rows / 10
    assert found.verdict == verdict


def test_classes_without_rows_are_counted():
    found = classes(Table.in_memory({"label": torch.zeros(40, 1, dtype=torch.long)}), 10)
    assert "9 classes have none" in found.advice


def support_with(ours, energy, doubt):
    label = torch.arange(60) % 3
    features = drawn(0, 60, 4) + 4 * torch.eye(3, 4)[label]
    rows = Table.in_memory({"features": features, "logits": features[:, :3], "label": label[:, None]})
    support = Support.fit(rows, 3, 1.0, 0.005)
    support.rivalry.copy_(torch.tensor([ours, energy, doubt]))
    return support


@pytest.mark.parametrize(
    ("scores", "verdict", "named"),
    [
        ((0.9, 0.8, 0.7), "ok", ""),
        ((0.8, 0.82, 0.84), "ok", ""),
        ((0.7, 0.8, 0.75), "warn", "the energy alone (0.80)"),
        ((0.7, 0.75, 0.8), "warn", "the largest probability alone (0.80)"),
        ((0.47, 0.24, 0.38), "warn", "neither support (AUROC 0.47) nor a free score (0.38)"),
    ],
)
def test_a_free_score_that_is_clearly_ahead_is_named(scores, verdict, named):
    found = rivalry(support_with(*scores))
    assert found.verdict == verdict
    assert found.value == pytest.approx(scores[0] - max(scores[1:]))
    assert named in found.advice


@pytest.mark.parametrize(
    ("scores", "named"), [((0.7, 0.8, 0.75), "the energy of"), ((0.7, 0.75, 0.8), "the entropy of")]
)
def test_a_free_score_takes_over_from_several_branches_without_a_warning(scores, named):
    support = support_with(*scores)
    support.fused = True
    found = rivalry(support)
    assert found.verdict == "ok"
    assert named in found.advice


def test_without_calibration_rows_nothing_is_known_of_the_probabilities():
    logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    found = uncalibrated(Table.in_memory({"logits": logits, "label": torch.tensor([[0], [0], [1], [0]])}))
    assert found.verdict == "unknown"
    assert "right on 75% of its training rows" in found.advice
    assert found.value == pytest.approx(1 / (1 + math.exp(-4)))


@pytest.mark.parametrize(("sure", "verdict"), [(0.8, "ok"), (0.95, "warn"), (0.65, "warn")])
def test_confidence_is_compared_with_accuracy(sure, verdict):
    """Eight of ten are right."""
    probs = torch.tensor([[sure, 1 - sure]]).repeat(1000, 1)
    found = calibrated(probs, (torch.arange(1000) % 5 == 0).long())
    assert found.value == pytest.approx(sure - 0.8, abs=1e-6)
    assert found.verdict == verdict


def test_a_gap_within_chance_is_forgiven():
    probs = torch.tensor([[0.9, 0.1]]).repeat(40, 1)
    assert calibrated(probs, (torch.arange(40) % 5 == 0).long()).verdict == "ok"


@pytest.mark.parametrize(("signal", "verdict"), [(0.0, "warn"), (3.0, "ok")])
def test_labels_that_are_noise_leave_nothing_to_rank(signal, verdict):
    rows = 3000
    label = torch.randint(3, (rows,), generator=torch.Generator().manual_seed(0))
    logits = signal * F.one_hot(label, 3) + 0.1 * drawn(1, rows, 3)
    wrong_now_and_then = torch.where(torch.arange(rows) % 10 == 0, (label + 1) % 3, label)
    found = ranking(logits.softmax(1), wrong_now_and_then, drawn(2, rows))
    assert found.verdict == verdict
    assert 0.4 < found.value < 0.6


def test_few_errors_say_nothing_of_ranks():
    probs = F.one_hot(torch.arange(100) % 2, 2).float()
    assert ranking(probs, torch.arange(100) % 2, drawn(0, 100)).verdict == "unknown"


# In a fit


def trained(rows, seed):
    x = drawn(seed, rows, 2)
    label = (x[:, 0] > 0).long() + (x[:, 1] + 0.3 * drawn(seed + 1, rows) > 0.5).long()
    return x, label


def network(data):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimiser.zero_grad()
        F.cross_entropy(model(data[0]), data[1]).backward()
        optimiser.step()
    return model


def test_a_sound_fit_looks_at_everything_and_says_nothing():
    data = trained(600, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sp.SplitPointWarning)
        plain = sp.SplitPointClassifier(epochs=2).fit(network(data), data, progress=False)
        held_out = sp.SplitPointClassifier(epochs=2).fit(
            network(data), data, calibration=trained(400, 5), progress=False
        )
    assert [check.name for check in plain.checks] == ["features", "rows of a class", "support score", "calibration"]
    assert [check.verdict for check in plain.checks] == ["ok", "ok", "ok", "unknown"]
    names = ["features", "calibration rows", "rows of a class", "support score", "calibration", "ranking of errors"]
    assert [check.name for check in held_out.checks] == names
    assert {check.verdict for check in held_out.checks} == {"ok"}


def test_one_row_a_class_warns():
    data = trained(600, 0)
    model, rows = network(data), torch.tensor([int((data[1] == k).nonzero()[0]) for k in range(3)])
    with pytest.warns(sp.SplitPointWarning, match="rows of a class: 3 rows are few for 3 classes"):
        sp.SplitPointClassifier(epochs=1).fit(model, (data[0][rows], data[1][rows]), progress=False)
