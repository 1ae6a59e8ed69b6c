"""Ranks over data sets, against the worked example in Table 6 of Demšar 2006, and against SciPy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitpoint.metrics import METRICS
from splitpoint.report.facts import Problem
from splitpoint.report.ranks import QUANTILES, compare, compare_rows, critical_difference, friedman, rank
from splitpoint.report.tables import Column, Table, summarised

AUC = {
    "C4.5": [0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661, 0.583, 0.775, 1, 0.940, 0.619, 0.972, 0.957],
    "C4.5+m": [0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668, 0.583, 0.838, 1, 0.962, 0.666, 0.981, 0.978],
    "C4.5+cf": [0.771, 0.590, 0.968, 0.654, 0.886, 0.916, 0.609, 0.563, 0.866, 1, 0.965, 0.614, 0.9751, 0.946],
    "C4.5+m+cf": [0.798, 0.569, 0.967, 0.657, 0.898, 0.931, 0.685, 0.625, 0.875, 1, 0.962, 0.669, 0.975, 0.970],
}
"""Table 6; 0.9751 stands for a tie in print that the paper ranks as none."""


@pytest.fixture(scope="module")
def example():
    return compare({name: [-value for value in values] for name, values in AUC.items()})


def test_average_ranks_of_the_worked_example(example):
    assert {name: round(value, 3) for name, value in example.ranks.items()} == {
        "C4.5+m+cf": 1.964,
        "C4.5+m": 2.000,
        "C4.5+cf": 2.893,
        "C4.5": 3.143,
    }
    assert list(example.ranks) == ["C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"]


def test_friedman_and_critical_difference_of_the_worked_example(example):
    assert example.chi_square == pytest.approx(9.28, abs=0.02)
    assert example.p < 0.05
    assert example.difference == pytest.approx(1.25, abs=0.005)
    assert example.datasets == 14
    assert example.groups == (("C4.5+m+cf", "C4.5"),)  # 3.143 - 1.964 = 1.18 < 1.25: none told apart


def test_quantiles_are_those_of_the_studentised_range():
    stats = pytest.importorskip("scipy.stats")
    exact = [stats.studentized_range.ppf(0.95, k, math.inf) / math.sqrt(2) for k in range(2, 21)]
    assert pytest.approx(exact, abs=1.5e-3) == list(QUANTILES)


@given(st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5, unique=True), min_size=3, max_size=9))
def test_friedman_is_that_of_scipy_without_ties(rows):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.friedmanchisquare(*zip(*rows, strict=True))
    means = [sum(column) / len(rows) for column in zip(*map(rank, rows), strict=True)]
    statistic, p = friedman(means, len(rows))
    assert statistic == pytest.approx(expected.statistic, abs=1e-8)
    assert p == pytest.approx(expected.pvalue, abs=1e-8)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3]), min_size=1, max_size=12))
def test_ranks_are_those_of_scipy(losses):
    stats = pytest.importorskip("scipy.stats")
    assert rank(losses) == list(stats.rankdata(losses))


def test_groups_are_the_longest_runs_and_not_inside_another():
    # Always in this order: ranks 1 to 6 over 60 data sets; the critical difference is 0.97, so nothing is joined.
    apart = compare({name: [place] * 60 for place, name in enumerate("abcdef")})
    assert apart.difference < 1
    assert apart.groups == ()
    # Over 12 data sets it is 2.18: each joins the two that follow.
    near = compare({name: [place] * 12 for place, name in enumerate("abcdef")})
    assert 2 < near.difference < 3
    assert near.groups == (("a", "c"), ("b", "d"), ("c", "e"), ("d", "f"))


def test_all_alike_is_no_evidence():
    same = compare({"a": [1, 1, 1], "b": [1, 1, 1]})
    assert (same.chi_square, same.p) == (0, 1)
    assert critical_difference(2, 6) == pytest.approx(1.960 * math.sqrt(6 / 36))


# Rows of a table


def table(values, metric="rmse"):
    """Rows of means, None for a failed cell, "absent" for one that was not run."""
    columns = tuple(
        Column(f"set{i}", Problem(f"set{i}"), METRICS[metric], 2) for i in range(len(next(iter(values.values()))))
    )
    entries = {
        (row, index): summarised([value, value])
        for row, means in values.items()
        for index, value in enumerate(means)
        if value != "absent"
    }
    return Table("RMSE", tuple(values), columns, entries)


def test_rows_with_failures_are_left_out_and_named():
    found = compare_rows(table({"a": [1, 1, 1], "b": [2, 2, 2], "c": [0, None, 0]}))
    assert dict(found.ranks) == {"a": 1.0, "b": 2.0}
    assert found.left_out == ("c",)


def test_data_sets_that_few_have_run_do_not_count():
    found = compare_rows(table({"a": [1, 1, 1, 1], "b": [2, 2, 2, "absent"], "c": [3, 3, 3, "absent"]}))
    assert found.datasets == 3
    assert found.left_out == ()


def test_ranks_follow_what_is_printed():
    found = compare_rows(table({"a": [1.001, 1, 1], "b": [1.002, 1, 1]}))
    assert dict(found.ranks) == {"a": 1.5, "b": 1.5}


@pytest.mark.parametrize(
    ("values", "metric"),
    [
        ({"a": [1, 1], "b": [2, 2]}, "rmse"),
        ({"a": [1, 1, 1]}, "rmse"),
        ({"a": [1, 1, 1], "b": [2, 2, 2]}, "mpiw"),
        ({str(i): [i, i, i] for i in range(21)}, "rmse"),
    ],
    ids=["two data sets", "one method", "no direction", "beyond the table"],
)
def test_too_little_to_compare(values, metric):
    assert compare_rows(table(values, metric)) is None
