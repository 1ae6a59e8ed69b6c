"""Error bars against SciPy, against theirs by hand, and against resampling of rows."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems import drawn
from splitpoint.metrics import aurc, auroc, spearman
from splitpoint.verdicts.estimates import (
    Excess,
    Mean,
    Share,
    Times,
    aurc_influence,
    auroc_influence,
    beta_share,
    mean_of,
    ratio_of,
    row_error,
    share_of,
    spearman_influence,
    student_quantile,
)

stats = pytest.importorskip("scipy.stats")


@given(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.2, 0.05, 0.002, 1e-5]))
def test_shares_have_the_exact_bounds_of_clopper_and_pearson(hits, more, alpha):
    share = Share(float(hits), float(hits + more))
    exact = stats.binomtest(hits, hits + more).proportion_ci(1 - alpha, method="exact")
    assert share.bounds(alpha) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_a_million_rows_have_bounds_too():
    assert Share(9e5, 1e6).bounds(0.05) == pytest.approx((0.89941, 0.90059), abs=1e-5)
    assert Share(1e6, 1e6).bounds(0.05)[1] == 1.0
    assert Share(0.0, 0.0).bounds(0.05) == (0.0, 1.0)


@given(st.floats(0.01, 0.99), st.floats(0.5, 300), st.floats(0.5, 300))
def test_beta_is_that_of_scipy(x, a, b):
    assert beta_share(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), abs=1e-10)


@given(st.floats(0.6, 0.99999), st.sampled_from([1, 2, 7, 30, 1000, math.inf]))
def test_student_is_that_of_scipy(share, freedom):
    assert student_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-6)


def test_the_mean_of_independent_rows_has_the_bounds_of_the_t_test():
    values = drawn(0, 12)
    found = mean_of(values, torch.arange(12)).bounds(0.05)
    exact = stats.ttest_1samp(values.double().numpy(), 0).confidence_interval(0.95)
    assert found == pytest.approx((exact.low, exact.high), rel=1e-6)


def test_entries_of_a_row_are_no_independent_rows():
    """Ten equal entries a row tell no more than one; entries that have nothing in common tell as much as rows."""
    values, row = drawn(0, 50), torch.arange(50)
    once, tenfold = mean_of(values, row), mean_of(values.repeat_interleave(10), row.repeat_interleave(10))
    assert tenfold.error == pytest.approx(once.error)
    hits = (values > -1).double()
    assert share_of(hits.repeat_interleave(10), row.repeat_interleave(10)).of == pytest.approx(50, rel=0.03)
    apart = (drawn(1, 5000) > -1).double()
    assert share_of(apart, torch.arange(5000) // 10).of > 4000
    assert share_of(apart, torch.arange(5000)).of == 5000


def test_delong_by_hand():
    """Three of four pairs are in order; placements are (1, 1/2) and (1, 1/2)."""
    score, positive = torch.tensor([1.0, 3.0, 2.0, 4.0]), torch.tensor([False, False, True, True])
    influence = auroc_influence(score, positive)
    assert influence.tolist() == [0.5, -0.5, -0.5, 0.5]
    by_hand = math.sqrt(0.125 / 2 + 0.125 / 2)  # variances of the placements over their counts
    assert row_error(influence, torch.arange(4)).error == pytest.approx(by_hand * math.sqrt(0.5 * 4 / 3))


def resampled(statistic, rows, draws=400):
    generator = torch.Generator().manual_seed(0)
    return torch.tensor([statistic(torch.randint(rows, (rows,), generator=generator)) for _ in range(draws)]).std()


@pytest.mark.parametrize("kind", ["auroc", "aurc", "spearman", "ratio"])
def test_errors_by_influence_are_those_of_resampling(kind):
    rows = 600
    score, loss = drawn(0, rows), drawn(0, rows) + drawn(1, rows)
    wrong, size = loss > 0.5, loss.exp()
    functions = {
        "auroc": (auroc_influence(score, wrong), lambda own: auroc(score[own][~wrong[own]], score[own][wrong[own]])),
        "spearman": (spearman_influence(score, size), lambda own: spearman(score[own], size[own])),
        "aurc": (aurc_influence(score, size), lambda own: aurc(score[own], size[own])),
    }
    if kind == "ratio":
        found = ratio_of(size, score.square() + 1, torch.arange(rows)).error
        other = resampled(lambda own: float(size[own].mean() / (score.square() + 1)[own].mean()), rows)
    else:
        influence, statistic = functions[kind]
        assert abs(float(influence.mean())) < 1e-9
        found, other = row_error(influence, torch.arange(rows)).error, resampled(statistic, rows)
    assert found == pytest.approx(float(other), rel=0.12)


def test_fisher_knows_the_error_of_a_rank_correlation_of_nothing():
    found = row_error(spearman_influence(drawn(0, 4000), drawn(1, 4000)), torch.arange(4000)).error
    assert found == pytest.approx(1 / math.sqrt(4000), rel=0.05)


def test_ties_share_their_influence():
    score, loss = torch.tensor([1.0, 1.0, 2.0, 2.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    influence = aurc_influence(score, loss)
    assert influence.sum().abs() < 1e-12
    assert influence[1] - influence[0] > influence[3] - influence[2] > 0


def test_an_excess_is_what_chance_does_not_explain():
    draws = torch.linspace(0, 1, 2001, dtype=torch.float64)
    low, high = Excess(1.2, draws).bounds(0.1)
    assert Excess(1.2, draws).value == pytest.approx(0.7)
    assert low == pytest.approx(1.2 - 0.95)
    assert high == pytest.approx(1.2 - 0.05)


def test_a_ratio_has_the_bounds_of_its_logarithm():
    assert Times(Mean(math.log(2), 0.1)).bounds(0.05) == pytest.approx(
        (2 * math.exp(-0.196), 2 * math.exp(0.196)), rel=1e-3
    )
