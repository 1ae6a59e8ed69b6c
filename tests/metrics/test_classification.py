"""Class probabilities in all their shapes, labels that do not count, and errors by scikit-learn, by hand, by loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from properties import examples
from splitpoint import metrics
from splitpoint.conformal import Conformity
from splitpoint.errors import DataError, SettingsError, ShapeError
from splitpoint.prediction import ClassificationPrediction

quick = examples(30)
PROBABILITIES = ["accuracy", "adaptive_ece", "brier", "classwise_ece", "ece", "ece_floor", "nll"]
every_metric = pytest.mark.parametrize("name", PROBABILITIES)


def drawn(*shape, axis=1, seed=0):
    """Probabilities of the shape and labels that follow them."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(*shape, generator=generator, dtype=torch.float64).mul(2).softmax(axis)
    last = probs.movedim(axis, -1)
    label = torch.multinomial(last.reshape(-1, last.shape[-1]), 1, generator=generator)
    return probs, label.reshape(last.shape[:-1])


def prediction(probs, axis=1, sets=None):
    score = probs.amax(axis)
    return ClassificationPrediction(score, score, score, None, probs, probs, probs.argmax(axis), conformity=sets)


def above(share, axis=1, level=0.95):
    """Sets of all classes that are at least as probable as `share`."""
    return Conformity(torch.full((3, 19), -share), axis, level=level)


# Shapes


@every_metric
def test_a_prediction_serves_as_well_as_its_probabilities(name):
    probs, label = drawn(40, 3)
    metric = getattr(metrics, name)
    assert metric(prediction(probs), label) == metric(probs, label) == metric(probs, label[:, None])


@every_metric
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 3, 4, 6), 1), ((5, 7, 3), -1), ((5, 3, 7), 1), ((5, 4, 4), 1), ((5, 4, 4), -1), ((5, 2, 3, 4, 6), 1)],
)
def test_maps_and_sequences_count_every_position(name, shape, axis):
    probs, label = drawn(*shape, axis=axis)
    metric = getattr(metrics, name)
    flat = probs.movedim(axis, -1).reshape(-1, probs.shape[axis])
    expected = metric(flat, label.flatten())
    assert metric(probs, label) == pytest.approx(expected)
    assert metric(prediction(probs, axis), label) == pytest.approx(expected)


@every_metric
@pytest.mark.parametrize("shape", [(3, 2), (12,), (5,), (4, 3, 1)])
def test_labels_of_another_shape_are_refused(name, shape):
    with pytest.raises(ShapeError, match=r"Expected probabilities .* but got \(4, 3\) and "):
        getattr(metrics, name)(torch.full((4, 3), 1 / 3), torch.zeros(shape).long())


# Labels


@every_metric
@pytest.mark.parametrize("missing", [-100, -1, math.nan])
def test_rows_without_a_label_do_not_count(name, missing):
    probs, label = drawn(30, 3)
    holes = label.double() if math.isnan(missing) else label.clone()
    holes[::4] = missing
    kept = torch.arange(30) % 4 != 0
    metric = getattr(metrics, name)
    assert metric(probs, holes) == pytest.approx(metric(probs[kept], label[kept]))


@every_metric
def test_pixels_without_a_label_do_not_count(name):
    probs, label = drawn(4, 3, 5, 5)
    label[:, 0] = -100
    metric = getattr(metrics, name)
    assert metric(probs, label) == pytest.approx(metric(probs[:, :, 1:], label[:, 1:]))


@every_metric
def test_metrics_of_nothing_are_nan(name):
    metric = getattr(metrics, name)
    assert math.isnan(metric(torch.full((4, 3), 1 / 3), torch.full((4,), -100)))
    assert math.isnan(metric(torch.zeros(0, 3), torch.zeros(0).long()))


@every_metric
@pytest.mark.parametrize(
    ("label", "message"),
    [([0, 3], "from 0 to 2, but got 3"), ([0.0, math.inf], "but got inf"), ([0.0, 1.5], "got fractions")],
)
def test_labels_that_are_no_class_are_refused(name, label, message):
    with pytest.raises(DataError, match=message):
        getattr(metrics, name)(torch.full((2, 3), 1 / 3), torch.tensor(label))


# Accuracy and proper scores


@pytest.mark.parametrize("classes", [2, 5])
def test_accuracy_and_proper_scores_agree_with_scikit_learn(classes):
    generator = torch.Generator().manual_seed(classes)
    probs = (2 * torch.randn(200, classes, generator=generator, dtype=torch.float64)).softmax(1)
    label, known = torch.randint(classes, (200,), generator=generator), {"labels": list(range(classes))}
    assert metrics.accuracy(probs, label) == pytest.approx(accuracy_score(label, probs.argmax(1)))
    assert metrics.nll(probs, label) == pytest.approx(log_loss(label, probs.numpy(), **known))
    expected = brier_score_loss(label, probs.numpy(), **known, scale_by_half=False)
    assert metrics.brier(probs, label) == pytest.approx(expected)


def test_nll_of_an_impossible_label_is_large_but_finite():
    value = metrics.nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert math.isfinite(value)
    assert value > 100


# Calibration errors


def test_ece_averages_inside_a_bin_before_it_compares():
    probs = torch.tensor([[0.8, 0.2]] * 5, dtype=torch.float64)
    assert metrics.ece(probs, torch.tensor([0, 0, 0, 0, 1])) == pytest.approx(0, abs=1e-12)


def test_ece_has_fifteen_bins_unless_told():
    probs = torch.tensor([[0.74, 0.26], [0.79, 0.21]], dtype=torch.float64)  # one bin of 15: (11/15, 12/15]
    label = torch.tensor([0, 1])
    assert metrics.ece(probs, label) == pytest.approx(abs(0.5 - 0.765))
    assert metrics.ece(probs, label, bins=100) == pytest.approx((0.26 + 0.79) / 2)
    apart = torch.tensor([[0.72, 0.28], [0.79, 0.21]], dtype=torch.float64)  # two bins of 15, one bin of 10
    assert metrics.ece(apart, label) == pytest.approx((0.28 + 0.79) / 2)


@quick
@given(
    st.lists(st.tuples(st.integers(16, 32), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([1, 4, 16]),
)
def test_ece_equals_a_literal_loop_over_bins_closed_on_the_right(table, bins):
    confidence = [n / 32 for n, _ in table]
    probs = torch.tensor([[c, 1 - c] for c in confidence], dtype=torch.float64)
    choice = probs.argmax(1).tolist()
    right = [hit for _, hit in table]
    label = torch.tensor([c if hit else 1 - c for c, hit in zip(choice, right, strict=True)])
    expected = 0.0
    for number in range(bins):
        inside = [i for i, c in enumerate(confidence) if number / bins < c <= (number + 1) / bins]
        if inside:
            hits, mean = (
                sum(right[i] for i in inside) / len(inside),
                sum(confidence[i] for i in inside) / len(inside),
            )
            expected += len(inside) / len(table) * abs(hits - mean)
    assert metrics.ece(probs, label, bins) == pytest.approx(expected, abs=1e-12)


def test_adaptive_ece_by_hand():
    confidence = torch.tensor([0.6, 0.7, 0.8, 0.9], dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], 1)
    label = torch.tensor([0, 1, 0, 0])
    # two bins of two rows: |1/2 - 0.65| and |1 - 0.85|
    assert metrics.adaptive_ece(probs, label, bins=2) == pytest.approx((0.15 + 0.15) / 2)
    assert metrics.adaptive_ece(probs, label) == pytest.approx((0.4 + 0.7 + 0.2 + 0.1) / 4)


def test_adaptive_ece_equals_a_literal_loop():
    probs, label = drawn(150, 4)
    confidence, choice = probs.max(1)
    order = confidence.argsort()
    gaps = ((choice == label).double() - confidence)[order].numpy()
    expected = sum(abs(part.sum()) for part in np.split(gaps, 15)) / 150
    assert metrics.adaptive_ece(probs, label) == pytest.approx(expected)


@quick
@given(st.lists(st.tuples(st.integers(17, 20), st.booleans()), min_size=1, max_size=40), st.randoms())
def test_the_order_of_rows_with_equal_confidence_does_not_matter(table, random):
    def value(rows):
        confidence = torch.tensor([n / 32 for n, _ in rows], dtype=torch.float64)
        return metrics.adaptive_ece(
            torch.stack([confidence, 1 - confidence], 1), torch.tensor([int(not hit) for _, hit in rows]), bins=4
        )

    shuffled = list(table)
    random.shuffle(shuffled)
    assert value(shuffled) == pytest.approx(value(table), abs=1e-12)


@pytest.mark.parametrize("bins", [1, 8, 15])
def test_classwise_ece_equals_a_literal_loop(bins):
    probs, label = drawn(80, 3, seed=1)
    total = 0.0
    for k in range(3):
        p, hit = probs[:, k].numpy(), (label == k).double().numpy()
        for i in range(bins):
            inside = (p > i / bins) & (p <= (i + 1) / bins)
            if inside.any():
                total += inside.mean() * abs(hit[inside].mean() - p[inside].mean()) / 3
    assert metrics.classwise_ece(probs, label, bins) == pytest.approx(total)


@pytest.mark.parametrize("name", ["ece", "adaptive_ece", "classwise_ece"])
def test_labels_drawn_from_the_probabilities_are_calibrated_and_others_are_not(name):
    probs, label = drawn(20_000, 4, seed=2)
    metric = getattr(metrics, name)
    assert metric(probs, label) < 0.02
    sharper = (probs**3) / (probs**3).sum(1, keepdim=True)
    assert metric(sharper, label) > 0.05


def test_reliability_by_hand():
    confidence = torch.tensor([0.55, 0.6, 0.95], dtype=torch.float64)
    found = metrics.reliability(torch.stack([confidence, 1 - confidence], 1), torch.tensor([0, 1, 0]), bins=4)
    assert found.count.tolist() == [0, 0, 2, 1]
    assert found.confidence[2:].tolist() == pytest.approx([0.575, 0.95])
    assert found.accuracy[2:].tolist() == [0.5, 1]
    assert found.accuracy[:2].isnan().all()


def test_ece_is_the_mean_gap_of_the_reliability_diagram():
    probs, label = drawn(300, 4)
    found = metrics.reliability(prediction(probs), label)
    gap = (found.confidence - found.accuracy).abs().nan_to_num()
    assert metrics.ece(probs, label) == pytest.approx(float((gap * found.count).sum() / 300))


@pytest.mark.parametrize("sharpness", [1, 4])
def test_ece_floor_is_what_labels_drawn_from_the_probabilities_come_to(sharpness):
    probs, _ = drawn(2000, 4)
    probs = (probs**sharpness) / (probs**sharpness).sum(1, keepdim=True)
    generator = torch.Generator().manual_seed(1)
    found = [metrics.ece(probs, torch.multinomial(probs, 1, generator=generator)) for _ in range(400)]
    assert metrics.ece_floor(probs, torch.zeros(2000)) == pytest.approx(np.mean(found), rel=0.05)


def test_ece_floor_of_rare_errors_is_that_of_a_poisson_law():
    probs = torch.tensor([[0.999, 0.001]], dtype=torch.float64).repeat(100, 1)
    expected = 2 * 0.1 * math.exp(-0.1) / 100  # mean deviation of a Poisson law of mean 0.1
    assert metrics.ece_floor(probs, torch.zeros(100)) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("name", ["ece", "ece_floor", "adaptive_ece", "classwise_ece", "reliability"])
def test_no_bins_are_refused(name):
    with pytest.raises(SettingsError, match="bins >= 1, but got 0"):
        getattr(metrics, name)(*drawn(4, 3), bins=0)


# Prediction sets


def test_sets_by_hand():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2], [0.1, 0.1, 0.8]])
    out = prediction(probs, sets=above(0.4))
    assert out.sets(0.95).tolist() == [[True, False, False], [True, True, False], [False, False, True]]
    assert metrics.set_size(out) == pytest.approx(4 / 3)
    assert metrics.set_coverage(out, torch.tensor([0, 1, 0])) == pytest.approx(2 / 3)
    assert metrics.set_coverage(out, torch.tensor([1, 1, -100])) == pytest.approx(1 / 2)
    assert math.isnan(metrics.set_coverage(out, torch.full((3,), -100)))
    assert math.isnan(metrics.set_size(out[:0]))


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4, 5), 1), ((2, 4, 4), -1), ((2, 4, 4), 1)])
def test_sets_of_maps_and_sequences(shape, axis):
    probs, label = drawn(*shape, axis=axis)
    sets = probs > 0.2
    out = prediction(probs, axis, above(0.2, axis))
    assert torch.equal(out.sets(0.95), sets)
    inside = sets.movedim(axis, -1).gather(-1, label[..., None])
    assert metrics.set_coverage(out, label) == pytest.approx(float(inside.double().mean()))
    assert metrics.set_size(out) == pytest.approx(float(sets.sum(axis).double().mean()))


def test_a_prediction_without_sets_is_refused():
    probs = torch.full((2, 2), 0.5)
    for out in (prediction(probs), prediction(probs, sets=above(0.2, level=0.96))):  # the latter has 19 rows, not 24
        for call in (lambda o=out: metrics.set_size(o), lambda o=out: metrics.set_coverage(o, torch.zeros(2).long())):
            with pytest.raises(DataError, match="Expected a prediction with sets, but got one without"):
                call()
