"""What the order of scores is worth, against scikit-learn, scipy, hand numbers and loops over all orders of ties."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from properties import examples
from splitpoint import metrics
from splitpoint.errors import SettingsError, ShapeError
from splitpoint.metrics.ranking import average_ranks, equal_parts, sorted_by
from splitpoint.prediction import RegressionPrediction

quick = examples(40)
small = st.integers(-8, 8)
group = st.lists(small, min_size=1, max_size=30)
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=6)
every_metric = pytest.mark.parametrize("name", ["auroc", "aupr", "fpr95"])


def ranked(error, total, epistemic=None):
    """Prediction 0 with these total scores; the targets are the errors."""
    total = torch.as_tensor(total, dtype=torch.float64)
    epistemic = total if epistemic is None else torch.as_tensor(epistemic, dtype=torch.float64)
    zero = torch.zeros_like(total)
    out = RegressionPrediction(total, epistemic, total, None, zero, (0.9,), zero[..., None], zero[..., None])
    return out, torch.as_tensor(error, dtype=torch.float64)


def literal_curve(score, loss):
    """Mean over all orders of the ties of the running mean loss."""
    curves = []
    for order in permutations(range(len(score))):
        if all(score[a] <= score[b] for a, b in pairwise(order)):
            chosen = np.array([loss[i] for i in order], dtype=float)
            curves.append(chosen.cumsum() / np.arange(1, len(order) + 1))
    return np.mean(curves, 0)


def floats(*groups):
    return [torch.tensor(values, dtype=torch.float64) for values in groups]


def as_sklearn(negative, positive):
    return [0] * len(negative) + [1] * len(positive), negative + positive


# Order


def test_sorting_averages_ties_and_puts_nan_last():
    score = torch.tensor([math.nan, 1.0, 0.0, 1.0])
    assert sorted_by(score, torch.tensor([9.0, 2.0, 5.0, 4.0])).tolist() == [5, 3, 3, 9]


@quick
@given(st.integers(0, 50), st.integers(1, 12))
def test_equal_parts_differ_by_at_most_one_row(count, parts):
    found = torch.bincount(equal_parts(count, parts, torch.device("cpu")), minlength=parts)
    assert int(found.sum()) == count
    assert int(found.max() - found.min()) <= 1


@quick
@given(st.lists(small, min_size=1, max_size=20))
def test_ranks_agree_with_scipy_ties_included(values):
    assert average_ranks(torch.tensor(values)).tolist() == stats.rankdata(values).tolist()


# Rank correlation


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


def test_rank_correlations_of_the_two_scores_agree_with_scipy():
    generator = torch.Generator().manual_seed(1)
    error, total, epistemic = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    out, y = ranked(error, total, epistemic)
    for name, score in (("total", total), ("epistemic", epistemic)):
        expected = stats.spearmanr(score, error.abs()).statistic
        assert getattr(metrics, f"spearman_{name}")(out, y) == pytest.approx(expected)
        y_holes = torch.where(torch.arange(40) % 4 == 0, math.nan, y)
        seen = ~y_holes.isnan()
        expected = stats.spearmanr(score[seen], error[seen].abs()).statistic
        assert getattr(metrics, f"spearman_{name}")(out, y_holes) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["spearman_epistemic", "spearman_total"])
def test_rank_correlations_take_a_flat_target_and_nothing(name):
    metric = getattr(metrics, name)
    out, y = ranked([[3.0], [-1.0], [2.0]], [[3.0], [1.0], [2.0]])
    assert metric(out, y.flatten()) == pytest.approx(1)
    assert math.isnan(metric(out[:0], y[:0]))


# Two groups


@quick
@given(group, group)
def test_areas_agree_with_scikit_learn_ties_included(negative, positive):
    (low, high), known = floats(negative, positive), as_sklearn(negative, positive)
    assert metrics.auroc(low, high) == pytest.approx(roc_auc_score(*known), abs=1e-12)
    assert metrics.auroc(high, low) == pytest.approx(1 - roc_auc_score(*known))
    assert metrics.aupr(low, high) == pytest.approx(average_precision_score(*known), abs=1e-12)


def test_auroc_by_hand():
    assert metrics.auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9])) == 0.875
    assert metrics.auroc(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0]])) == 1


def test_the_positive_class_is_the_second_group_and_not_the_first():
    low, high = floats([0.1] * 90, [0.9] * 9 + [0.05])
    assert metrics.aupr(low, high) == pytest.approx(0.9 * 1 + 0.1 * 10 / 100)
    assert metrics.aupr(high, low) == pytest.approx(90 / 99)
    assert metrics.aupr(*floats([1.0] * 3, [1.0])) == pytest.approx(1 / 4)  # no information: the share of positives


@quick
@given(group, group)
def test_false_positives_agree_with_the_curve_of_scikit_learn(negative, positive):
    false, true, _ = roc_curve(*as_sklearn(negative, positive), drop_intermediate=False)
    assert metrics.fpr95(*floats(negative, positive)) == pytest.approx(false[true >= 0.95][0])


def test_false_positives_by_hand():
    positive = list(range(10, 30))  # 95% of twenty are nineteen: the threshold is 11
    assert metrics.fpr95(*floats([9.0, 10.0, 10.5, 11.0], positive)) == 0.25  # a tie with the threshold counts
    assert metrics.fpr95(*floats([9.0, 10.0, 10.5, 12.0, 40.0], positive)) == 0.4
    assert metrics.fpr95(*floats([9.0, 10.0], positive)) == 0
    assert metrics.fpr95(*floats([5.0, 5.0], [5.0])) == 1


@every_metric
@quick
@given(negative=group, positive=group, random=st.randoms())
def test_monotone_changes_of_the_score_and_the_order_of_rows_change_nothing(name, negative, positive, random):
    metric = getattr(metrics, name)
    low, high = floats(negative, positive)
    random.shuffle(negative)
    random.shuffle(positive)
    again = floats(negative, positive)
    assert metric(*(part.exp() * 3 - 7 for part in again)) == pytest.approx(metric(low, high), abs=1e-12)


@every_metric
@pytest.mark.parametrize(("negative", "positive"), [([], [1.0]), ([1.0], []), ([], [])])
def test_without_one_of_the_groups_the_answer_is_nan(name, negative, positive):
    assert math.isnan(getattr(metrics, name)(torch.tensor(negative), torch.tensor(positive)))


@every_metric
def test_maps_are_flattened_and_float64_is_not_rounded(name):
    metric = getattr(metrics, name)
    perfect = 0 if name == "fpr95" else 1
    one = torch.ones(2, 1, dtype=torch.float64)
    assert metric(one, one + 1e-12) == perfect


@every_metric
def test_a_score_that_is_not_a_number_counts_as_the_highest(name):
    metric = getattr(metrics, name)
    low, high = floats([0.0, 1.0, math.nan], [2.0, math.nan, math.inf])
    expected = metric(*floats([0.0, 1.0, 9.0], [2.0, 9.0, 9.0]))
    assert metric(low, high) == pytest.approx(expected)


# Risk and coverage


def test_risk_coverage_by_hand():
    score, wrong = torch.tensor([0.1, 0.9, 0.5, 0.2]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    curve = metrics.risk_coverage(score, wrong)
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert curve.risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert metrics.aurc(score, wrong) == pytest.approx((1 / 3 + 1 / 2) / 4)
    assert metrics.eaurc(score, wrong) == pytest.approx(0)
    assert metrics.eaurc(-score, wrong) == pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4 - (1 / 3 + 1 / 2) / 4)


@quick
@given(rows)
def test_ties_count_as_the_mean_over_all_their_orders(table):
    score, loss = zip(*table, strict=True)
    got = metrics.risk_coverage(torch.tensor(score).float(), torch.tensor(loss).float())
    np.testing.assert_allclose(got.risk, literal_curve(score, loss), atol=1e-12)


@quick
@given(rows, st.randoms())
def test_the_order_of_the_rows_and_the_units_of_the_score_do_not_matter(table, random):
    shuffled = list(table)
    random.shuffle(shuffled)
    (a, x), (b, y) = ([torch.tensor(c).double() for c in zip(*t, strict=True)] for t in (table, shuffled))
    assert metrics.aurc(a, x) == pytest.approx(metrics.aurc(b.exp() - 3, y))
    assert metrics.eaurc(a, x) >= -1e-12


def test_a_constant_score_has_the_mean_loss_everywhere():
    assert metrics.risk_coverage(torch.ones(4), torch.tensor([0.0, 1, 1, 0])).risk.tolist() == [0.5] * 4


def test_rows_without_a_loss_are_left_out_and_maps_are_flattened():
    score, loss = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, math.nan], [3.0, 5.0]])
    assert metrics.risk_coverage(score, loss).risk.tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["aurc", "eaurc"])
def test_areas_of_nothing_are_nan(name):
    assert math.isnan(getattr(metrics, name)(torch.zeros(0), torch.zeros(0)))


def test_a_score_for_other_rows_is_refused():
    with pytest.raises(ShapeError, match=r"Expected a score for every loss, but got \(3,\) and \(2,\)"):
        metrics.risk_coverage(torch.zeros(3), torch.zeros(2))


# Sparsification


def test_sparsification_by_hand():
    out, y = ranked([4.0, -2.0, 1.0, 1.0], [3.0, 4.0, 2.0, 1.0])  # removes the errors 2, 4, 1, 1 in turn
    curve = metrics.sparsification(out, y)
    assert curve.removed.tolist() == [0, 0.25, 0.5, 0.75]
    assert curve.error.tolist() == pytest.approx([1, 1, 0.5, 0.5])  # 8/4, 6/3, 2/2, 1 over 2
    assert curve.oracle.tolist() == pytest.approx([1, 2 / 3, 0.5, 0.5])  # 8/4, 4/3, 2/2, 1 over 2
    assert metrics.ause(out, y) == pytest.approx(1 / 12)


def test_sparsification_of_the_root_mean_square_by_hand():
    out, y = ranked([4.0, -2.0, 1.0, 1.0], [3.0, 4.0, 2.0, 1.0])
    curve = metrics.sparsification(out, y, error="rmse")
    full = math.sqrt(22 / 4)
    assert curve.error.tolist() == pytest.approx([1, math.sqrt(18 / 3) / full, 1 / full, 1 / full])
    assert curve.oracle.tolist() == pytest.approx([1, math.sqrt(6 / 3) / full, 1 / full, 1 / full])
    assert metrics.ause(out, y, error="rmse") == pytest.approx((math.sqrt(6) - math.sqrt(2)) / full / 4)


def test_ause_of_mean_absolute_errors_is_the_relative_excess_of_the_risk():
    generator = torch.Generator().manual_seed(0)
    error, score = torch.rand(2, 50, generator=generator, dtype=torch.float64)
    out, y = ranked(error, score)
    assert metrics.ause(out, y) == pytest.approx(metrics.eaurc(score, error) / float(error.mean()))


def test_the_score_may_be_chosen():
    out, y = ranked([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], epistemic=[30.0, 20.0, 10.0])
    assert metrics.ause(out, y, score="epistemic") == pytest.approx(0)
    assert metrics.ause(out, y) == metrics.ause(out, y, score="aleatoric") > 0


@quick
@given(rows, st.floats(0.1, 10), st.sampled_from(["mae", "rmse"]))
def test_ause_is_free_of_units_and_never_negative(table, factor, error):
    score, size = (torch.tensor(column).double() for column in zip(*table, strict=True))
    one = metrics.ause(*ranked(size, score), error=error)
    other = metrics.ause(*ranked(factor * size, score.exp()), error=error)
    assert other == pytest.approx(one, nan_ok=True, abs=1e-9)
    assert math.isnan(one) == (not size.any())
    assert math.isnan(one) or one >= -1e-12


def test_missing_targets_do_not_count_and_nothing_is_nan():
    out, y = ranked([3.0, math.nan, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0])
    kept = torch.tensor([0, 2, 3])
    assert metrics.ause(out, y) == pytest.approx(metrics.ause(out[kept], y[kept]))
    assert math.isnan(metrics.ause(out, torch.full_like(y, math.nan)))


@pytest.mark.parametrize(("setting", "value"), [("score", "mar"), ("error", "mse")])
def test_unknown_choices_are_refused(setting, value):
    with pytest.raises(SettingsError, match=f"Expected {setting} to be .*, but got '{value}'"):
        metrics.sparsification(*ranked([1.0], [1.0]), **{setting: value})
