"""Metrics against scikit-learn, scipy and hand numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    log_loss,
    mean_absolute_error,
    roc_auc_score,
    root_mean_squared_error,
)

from properties import examples
from splitpoint import metrics
from splitpoint.errors import ShapeError
from splitpoint.metrics.order import average_ranks
from splitpoint.prediction import RegressionPrediction

quick = examples(40)
small = st.integers(-8, 8)
REGRESSION = ["mae", "mpiw", "picp", "picp_down", "picp_up", "piece_minus", "piece_plus", "rmse", "winkler"]


def prediction(mean, lower, upper, levels=(0.9,)):
    mean, lower, upper = (torch.as_tensor(part, dtype=torch.float64) for part in (mean, lower, upper))
    return RegressionPrediction(
        aleatoric=upper - lower,
        epistemic=torch.zeros_like(mean),
        total=upper - lower,
        reference=None,
        mean=mean,
        levels=levels,
        lowers=torch.stack([mean] * (len(levels) - 1) + [lower], -1),
        uppers=torch.stack([mean] * (len(levels) - 1) + [upper], -1),
    )


def four_rows(levels=(0.9,)):
    """Targets: inside above the mean, outside above, outside below, inside below; widths 4, 2, 3, 6."""
    out = prediction([0.0, 0.0, 0.0, 0.0], [-2.0, -1.0, -1.0, -3.0], [2.0, 1.0, 2.0, 3.0], levels)
    return out, torch.tensor([1.5, 2.0, -1.5, -3.0], dtype=torch.float64)


# Intervals


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("picp", 0.5),
        ("picp_up", 0.5),
        ("picp_down", 0.5),
        ("piece_plus", 0.4),
        ("piece_minus", 0.4),
        ("mpiw", 15 / 4),
        ("winkler", (4 + (2 + 20 * 1.0) + (3 + 20 * 0.5) + 6) / 4),
    ],
)
def test_interval_metrics_by_hand(name, expected):
    value = getattr(metrics, name)(*four_rows())
    assert isinstance(value, float)
    assert value == pytest.approx(expected)


def test_interval_metrics_are_judged_at_the_highest_level():
    out, target = four_rows(levels=(0.5, 0.8))
    assert metrics.piece_plus(out, target) == pytest.approx(0.3)
    assert metrics.winkler(out, target) == pytest.approx((4 + (2 + 10 * 1.0) + (3 + 10 * 0.5) + 6) / 4)
    assert metrics.mpiw(out, target) == pytest.approx(15 / 4)


def test_a_target_on_a_bound_is_inside():
    out = prediction([0.0, 0.0], [-1.0, -1.0], [1.0, 1.0])
    target = torch.tensor([1.0, -1.0])
    assert metrics.picp(out, target) == metrics.picp_up(out, target) == metrics.picp_down(out, target) == 1


def test_a_target_on_the_mean_belongs_to_neither_side():
    out = prediction([0.0, 0.0], [-1.0, -1.0], [1.0, 1.0])
    target = torch.tensor([0.0, 5.0])
    assert metrics.picp_up(out, target) == 0
    assert math.isnan(metrics.picp_down(out, target))
    assert math.isnan(metrics.piece_minus(out, target))


def test_a_nan_bound_does_not_cover():
    out = prediction([0.0, 0.0], [math.nan, -1.0], [math.nan, 1.0])
    assert metrics.picp(out, torch.tensor([0.5, 0.5])) == 0.5


def test_winkler_is_smallest_at_the_true_quantiles():
    y = torch.tensor(stats.norm.ppf((np.arange(2000) + 0.5) / 2000))

    def score(half):
        return metrics.winkler(prediction(torch.zeros(2000), torch.full((2000,), -half), torch.full((2000,), half)), y)

    best = score(stats.norm.ppf(0.95))
    assert best < min(score(1.3), score(2.0))
    assert best == pytest.approx(4 / 0.1 * stats.norm.pdf(stats.norm.ppf(0.95)), rel=1e-2)  # closed form


@quick
@given(st.lists(st.tuples(small, small, small, small), min_size=1, max_size=12))
def test_coverage_and_winkler_equal_a_literal_loop(table):
    rows = [(y, mean, mean - abs(down), mean + abs(up)) for y, mean, down, up in table]
    y, mean, low, high = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    out = prediction(mean, low, high)
    inside = [lo <= t <= hi for t, _, lo, hi in rows]
    assert metrics.picp(out, y) == pytest.approx(sum(inside) / len(rows))
    scores = [hi - lo + 20 * (max(lo - t, 0) + max(t - hi, 0)) for t, _, lo, hi in rows]
    assert metrics.winkler(out, y) == pytest.approx(sum(scores) / len(rows))


# What every regression metric promises


@pytest.mark.parametrize("name", REGRESSION)
def test_nan_targets_do_not_count(name):
    metric = getattr(metrics, name)
    out, target = four_rows()
    padded = prediction(*(torch.cat([part, torch.tensor([9.0, 9.5])]) for part in (out.mean, out.lower, out.upper)))
    holes = torch.cat([target, torch.tensor([math.nan, math.nan])])
    assert metric(padded, holes) == pytest.approx(metric(out, target))


@pytest.mark.parametrize("name", REGRESSION)
def test_metrics_of_nothing_are_nan(name):
    out, target = four_rows()
    assert math.isnan(getattr(metrics, name)(out, torch.full_like(target, math.nan)))


@pytest.mark.parametrize("name", REGRESSION)
def test_a_flat_target_serves_an_output_with_one_column(name):
    out, target = four_rows()
    column = prediction(out.mean[:, None], out.lower[:, None], out.upper[:, None])
    metric = getattr(metrics, name)
    assert metric(column, target) == metric(column, target[:, None]) == metric(out, target)


@pytest.mark.parametrize("name", ["picp", "rmse"])
@pytest.mark.parametrize("shape", [(2, 3), (6,), (3, 3)], ids=["transposed", "flattened", "too many"])
def test_a_target_of_another_shape_is_refused_not_reshaped(name, shape):
    out = prediction(torch.zeros(3, 2), -torch.ones(3, 2), torch.ones(3, 2))
    with pytest.raises(ShapeError):
        getattr(metrics, name)(out, torch.zeros(shape))


# Point predictions


@quick
@given(st.lists(st.tuples(small, small), min_size=1, max_size=12))
def test_rmse_and_mae_agree_with_scikit_learn(table):
    mean, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*table, strict=True))
    out = prediction(mean, mean - 1, mean + 1)
    assert metrics.rmse(out, y) == pytest.approx(root_mean_squared_error(y, mean))
    assert metrics.mae(out, y) == pytest.approx(mean_absolute_error(y, mean))


def test_rmse_is_not_a_mean_absolute_error():
    out = prediction([0.0, 0.0], [-1.0, -1.0], [1.0, 1.0])
    target = torch.tensor([1.0, 3.0])
    assert metrics.rmse(out, target) == pytest.approx(math.sqrt(5))
    assert metrics.mae(out, target) == pytest.approx(2)


@pytest.mark.parametrize("name", ["rmse", "mae"])
def test_a_nan_prediction_is_never_dropped_from_the_mean(name):
    out = prediction([0.0, math.nan], [-1.0, -1.0], [1.0, 1.0])
    assert math.isnan(getattr(metrics, name)(out, torch.tensor([0.5, 0.5])))


@quick
@given(st.lists(small, min_size=1, max_size=20))
def test_ranks_agree_with_scipy_ties_included(values):
    assert average_ranks(torch.tensor(values)).tolist() == stats.rankdata(values).tolist()


@quick
@given(st.lists(st.tuples(small, small), min_size=3, max_size=25))
def test_spearman_agrees_with_scipy_ties_included(pairs):
    a, b = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    assume(np.ptp(a) > 0 and np.ptp(b) > 0)
    got = metrics.spearman(torch.from_numpy(a), torch.from_numpy(b))
    assert got == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-9)


def test_spearman_flattens_maps():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, 3, 4, 5, generator=generator).unbind()
    expected = stats.spearmanr(a.numpy().ravel(), b.numpy().ravel()).statistic
    assert metrics.spearman(a, b) == pytest.approx(expected)


def test_spearman_leaves_rows_without_a_target_out():
    score, error = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, math.nan])
    assert metrics.spearman(score, error) == pytest.approx(stats.spearmanr([1, 2, 3], [1, 3, 2]).statistic)


@pytest.mark.parametrize("other", [[2.0, 2.0, 2.0], [2.0], []], ids=["constant", "one row", "no row"])
def test_spearman_of_a_constant_sample_is_nan_without_a_warning(other):
    torch.set_warn_always(True)
    try:
        assert math.isnan(metrics.spearman(torch.arange(float(len(other))), torch.tensor(other)))
    finally:
        torch.set_warn_always(False)


# Detection


@quick
@given(st.lists(small, min_size=1, max_size=15), st.lists(small, min_size=1, max_size=15))
def test_auroc_agrees_with_scikit_learn_ties_included(negative, positive):
    expected = roc_auc_score([0] * len(negative) + [1] * len(positive), negative + positive)
    got = metrics.auroc(torch.tensor(negative).float(), torch.tensor(positive).float())
    assert got == pytest.approx(expected, abs=1e-12)


@quick
@given(st.lists(small, min_size=1, max_size=15), st.lists(small, min_size=1, max_size=15))
def test_swapping_the_groups_mirrors_the_auroc(negative, positive):
    low, high = torch.tensor(negative).float(), torch.tensor(positive).float()
    assert metrics.auroc(low, high) == pytest.approx(1 - metrics.auroc(high, low))


def test_auroc_by_hand():
    assert metrics.auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9])) == 0.875
    assert metrics.auroc(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0]])) == 1


def test_auroc_tells_float64_scores_apart_that_float32_would_tie():
    assert (
        metrics.auroc(torch.tensor([1.0], dtype=torch.float64), torch.tensor([1.0 + 1e-12], dtype=torch.float64)) == 1
    )


@pytest.mark.parametrize(("negative", "positive"), [([], [1.0]), ([1.0], []), ([], [])])
def test_auroc_without_one_of_the_groups_is_nan(negative, positive):
    assert math.isnan(metrics.auroc(torch.tensor(negative), torch.tensor(positive)))


# Probabilities


@pytest.fixture(params=[2, 5], ids=["binary", "five classes"])
def classified(request):
    generator = torch.Generator().manual_seed(request.param)
    probs = (2 * torch.randn(200, request.param, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.randint(request.param, (200,), generator=generator)


def test_accuracy_agrees_with_scikit_learn(classified):
    probs, label = classified
    assert metrics.accuracy(probs, label) == pytest.approx(accuracy_score(label, probs.numpy().argmax(1)))


def test_nll_agrees_with_scikit_learn(classified):
    probs, label = classified
    expected = log_loss(label, probs.numpy(), labels=list(range(probs.shape[1])))
    assert metrics.nll(probs, label) == pytest.approx(expected)


def test_brier_agrees_with_scikit_learn(classified):
    probs, label = classified
    array = probs.numpy()
    expected = brier_score_loss(label, array, labels=list(range(array.shape[1])), scale_by_half=False)
    assert metrics.brier(probs, label) == pytest.approx(expected)


def test_probability_metrics_by_hand():
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    label = torch.tensor([0, 1])
    assert metrics.nll(probs, label) == pytest.approx(-(math.log(0.75) + math.log(0.5)) / 2)
    assert metrics.brier(probs, label) == pytest.approx((2 * 0.0625 + 2 * 0.25) / 2)
    assert metrics.accuracy(
        torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]]), torch.tensor([0, 1, 1])
    ) == pytest.approx(2 / 3)


def test_nll_of_an_impossible_label_is_large_but_finite():
    value = metrics.nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert math.isfinite(value)
    assert value > 100


def test_ece_by_hand():
    probs = torch.tensor([[0.95, 0.05], [0.85, 0.15], [0.55, 0.45]], dtype=torch.float64)
    value = metrics.ece(probs, torch.tensor([0, 1, 0]), bins=10)
    assert value == pytest.approx((0.05 + 0.85 + 0.45) / 3)


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


def test_every_metric_tested_here_is_exported():
    probabilities, scores = ["accuracy", "brier", "ece", "nll"], ["auroc", "spearman"]
    assert {*REGRESSION, *probabilities, *scores} <= set(metrics.__all__)
