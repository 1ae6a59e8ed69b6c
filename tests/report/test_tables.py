"""Cells of a report: means, errors, places and verdicts, against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitpoint.metrics import METRICS
from splitpoint.report.facts import Problem
from splitpoint.report.published import Figure
from splitpoint.report.tables import Column, Entry, Tally, decimals, number, placed, summarised, with_verdict

NAN = math.nan
RMSE, PICP, SPEARMAN, MPIW = (METRICS[name] for name in ("rmse", "picp", "spearman_total", "mpiw"))


def figure(mean, stderr=NAN, unit=0.01):
    return Figure(mean, stderr, unit, f"{mean}", "tab:x")


# Means


def test_mean_and_standard_error_by_hand():
    found = summarised([2.0, 4.0, 4.0, 6.0])
    assert found.mean == 4.0
    assert found.stderr == pytest.approx(math.sqrt(8 / 3) / 2)  # deviations -2, 0, 0, 2; n - 1 = 3; sqrt(n) = 2
    assert found.text(2) == "4.00 ± 0.82"


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_standard_error_is_that_of_scipy(values):
    stats = pytest.importorskip("scipy.stats")
    assert summarised(values).stderr == pytest.approx(stats.sem(values), rel=1e-6, abs=1e-9)


def test_one_trial_has_no_standard_error():
    found = summarised([3.14159])
    assert math.isnan(found.stderr)
    assert found.text(2) == "3.14"


def test_failed_trials_are_counted_and_leave_no_mean():
    found = summarised([1.0, None, 2.0, None])
    assert (found.trials, found.failed, found.whole) == (4, 2, False)
    assert math.isnan(found.mean)
    assert found.text(2) == "2 of 4 failed"


def test_numbers_that_could_not_be_computed_are_told_apart_from_failures():
    assert summarised([1.0, NAN]).text(2) == "1 of 2 undefined"
    assert summarised([NAN, NAN]).text(2) == "undefined"
    assert summarised([None, NAN]).text(2) == "1 of 2 failed"
    assert summarised([math.inf, 1.0]).text(2) == "1 of 2 undefined"


# Digits


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ([Entry(20, mean=33.4, stderr=0.89)], 2),
        ([Entry(20, mean=0.0881, stderr=0.0023)], 3),
        ([Entry(20, mean=0.00121, stderr=0.00003)], 5),
        ([Entry(20, mean=1.0, stderr=1e-12)], 6),
        ([Entry(1, mean=0.0123)], 4),
        ([Entry(20, mean=0.5, stderr=0.0)], 3),
        ([Entry(20, failed=1)], 2),
        ([], 2),
    ],
)
def test_digits_stop_where_the_error_begins(entries, wanted):
    assert decimals(entries) == wanted


def test_numbers_are_printed_without_a_negative_zero_and_not_too_long():
    assert number(-0.0004, 2) == "0.00"
    assert number(123456.7, 2) == "123456.70"
    assert number(-2.5e9, 2) == "-2.50e+09"


# Places


def column(which=RMSE, digits=2):
    return Column("boston", Problem("boston"), which, digits)


def places(means, which=RMSE, digits=2):
    entries = {str(i): summarised([mean, mean]) for i, mean in enumerate(means)}
    return [entry.place for entry in placed(entries, column(which, digits)).values()]


def test_values_equal_as_printed_share_a_place_and_the_next_is_second():
    assert places([3.001, 2.999, 3.2, 4.0]) == [1, 1, 2, 3]
    assert places([3.001, 2.999, 3.2, 4.0], digits=3) == [2, 1, 3, 4]


def test_direction_decides_the_place():
    assert places([0.1, 0.5, 0.3], SPEARMAN) == [3, 1, 2]
    assert places([0.93, 0.95, 0.97, 0.99], PICP) == [2, 1, 2, 3]
    assert places([1.0, 2.0], MPIW) == [None, None]


def test_a_cell_with_failures_has_no_place_and_takes_none():
    entries = {"a": summarised([1.0, None]), "b": summarised([2.0, 2.0]), "c": summarised([3.0, 3.0])}
    assert [entry.place for entry in placed(entries, column()).values()] == [None, 1, 2]


def test_one_number_alone_is_no_winner():
    assert places([1.0]) == [None]


# Verdicts


@pytest.mark.parametrize(
    ("mean", "wanted"),
    # tolerance: 2 sqrt(0.3^2 + 0.4^2) + 0.005 = 1.005
    [(5.0, "reproduced"), (6.004, "reproduced"), (6.006, "worse"), (3.996, "reproduced"), (3.994, "better")],
)
def test_verdict_by_hand(mean, wanted):
    found = with_verdict(Entry(20, mean=mean, stderr=0.3), figure(5.0, 0.4), RMSE)
    assert found.verdict == wanted
    assert found.published.mean == 5.0


def test_rounding_of_the_published_figure_is_forgiven():
    ours = Entry(20, mean=0.0049, stderr=0.0)
    assert with_verdict(ours, figure(0.00, 0.00), RMSE).verdict == "reproduced"
    assert with_verdict(Entry(20, mean=0.0051, stderr=0.0), figure(0.00, 0.00), RMSE).verdict == "worse"


def test_higher_is_better_turns_the_verdict():
    assert with_verdict(Entry(20, mean=0.9, stderr=0.01), figure(0.5, 0.01), SPEARMAN).verdict == "better"
    assert with_verdict(Entry(20, mean=0.1, stderr=0.01), figure(0.5, 0.01), SPEARMAN).verdict == "worse"


def test_without_a_published_error_our_spread_stands_in():
    # standard deviation 0.1 * sqrt(4) = 0.2: tolerance 2 sqrt(0.01 + 0.04) + 0.005 = 0.4522
    assert with_verdict(Entry(4, mean=1.45, stderr=0.1), figure(1.0), RMSE).verdict == "reproduced"
    assert with_verdict(Entry(4, mean=1.46, stderr=0.1), figure(1.0), RMSE).verdict == "worse"


def test_no_verdict_without_a_figure_a_spread_or_a_direction():
    ours = Entry(20, mean=1.0, stderr=0.1)
    assert with_verdict(ours, None, RMSE) == ours
    assert with_verdict(Entry(1, mean=1.0), figure(1.0, 0.1), RMSE).verdict is None
    assert with_verdict(ours, figure(1.0, 0.1), MPIW).verdict is None
    apart = with_verdict(ours, figure(1.0, 0.1), RMSE, comparable=False)
    assert apart.verdict is None
    assert apart.published is not None


def test_failed_trials_fail_to_reproduce():
    assert with_verdict(summarised([1.0, None]), figure(1.0, 0.1), RMSE).verdict == "failed"
    assert with_verdict(summarised([1.0, None]), figure(1.0, 0.1), RMSE, comparable=False).verdict is None


def test_tally_counts_failures_among_what_was_compared():
    entries = [
        with_verdict(Entry(20, mean=mean, stderr=0.1), figure(published, 0.1), RMSE)
        for mean, published in ((1.0, 1.0), (0.1, 0.0), (9.0, 1.0), (1.0, 9.0))
    ]
    tally = Tally.of([*entries, with_verdict(summarised([None]), figure(1.0), RMSE), Entry(20, mean=1.0, stderr=0.1)])
    assert tally == Tally(reproduced=2, better=1, worse=1, failed=1, zeros=1)
    assert str(tally) == "2 of 5 reproduced (40%), 1 of them printed as zero; 1 better, 1 worse, 1 failed"
    assert (tally + tally).compared == 10
    assert str(Tally()) == "nothing to compare with"
