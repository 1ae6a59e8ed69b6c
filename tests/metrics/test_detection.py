"""Average precision and false positives against scikit-learn, ties included, and what any ranking metric promises."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_curve

from properties import examples
from splitpoint import metrics

quick = examples(40)
group = st.lists(st.integers(-8, 8), min_size=1, max_size=30)
every_metric = pytest.mark.parametrize("name", ["auroc", "aupr", "fpr95"])


def floats(*groups):
    return [torch.tensor(values, dtype=torch.float64) for values in groups]


def as_sklearn(negative, positive):
    return [0] * len(negative) + [1] * len(positive), negative + positive


@quick
@given(group, group)
def test_average_precision_agrees_with_scikit_learn_ties_included(negative, positive):
    expected = average_precision_score(*as_sklearn(negative, positive))
    assert metrics.aupr(*floats(negative, positive)) == pytest.approx(expected, abs=1e-12)


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
