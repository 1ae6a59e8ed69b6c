"""Point predictions and intervals, against scikit-learn, scipy, literal loops and hand numbers."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, root_mean_squared_error

from properties import examples
from splitpoint import metrics
from splitpoint.errors import SettingsError, ShapeError
from splitpoint.prediction import RegressionPrediction

quick = examples(40)
small = st.integers(-8, 8)
SIDES = ["picp_down", "picp_up", "piece_floor_minus", "piece_floor_plus", "piece_minus", "piece_plus"]
INTERVALS = [*SIDES, "mpiw", "picp", "piece", "piece_authors", "pinball", "winkler"]
every_metric = pytest.mark.parametrize("name", [*INTERVALS, "mae", "rmse"])
every_interval = pytest.mark.parametrize("name", INTERVALS)


def of(bounds, mean=None):
    """Prediction with intervals ``{level: (lowers, uppers)}`` around zero, or around `mean`."""
    lowers, uppers = (
        torch.stack([torch.as_tensor(pair[side], dtype=torch.float64) for pair in bounds.values()], -1)
        for side in (0, 1)
    )
    width = (uppers - lowers)[..., -1]
    mean = torch.zeros_like(width) if mean is None else torch.as_tensor(mean, dtype=torch.float64)
    return RegressionPrediction(width, width, width, None, mean, tuple(bounds), lowers, uppers)


def around(mean, lower, upper):
    return of({0.9: (lower, upper)}, mean)


def four_rows():
    """Targets: inside above the mean, outside above, outside below, inside below; widths 4, 2, 3, 6."""
    out = around(torch.zeros(4), [-2.0, -1.0, -1.0, -3.0], [2.0, 1.0, 2.0, 3.0])
    return out, torch.tensor([1.5, 2.0, -1.5, -3.0], dtype=torch.float64)


def widths(sizes, level):
    """Intervals of these widths around zero; a target of 0 is inside and one of 1e6 is not."""
    half = torch.as_tensor(sizes, dtype=torch.float64) / 2
    return of({level: (-half, half)})


def targets(inside):
    return torch.tensor([0.0 if hit else 1e6 for hit in inside], dtype=torch.float64)


def two_levels(seed=0, rows=60):
    generator = torch.Generator().manual_seed(seed)
    a, b, y = torch.randn(3, rows, generator=generator, dtype=torch.float64)
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return of({0.5: (low / 2, high / 2), 0.9: (low, high)}), y


def authors_loop(y, low, high, level):
    """The published definition, bin after bin."""
    size = high - low
    covered = (low <= y) & (y <= high)
    if size.min() == size.max():
        return abs(covered.mean() - 1)
    edges = np.linspace(size.min(), size.max(), 11)
    total = 0.0
    for first, last in pairwise(edges):
        chosen = (first <= size) & (size < last)
        if chosen.any():
            total += chosen.sum() / len(y) * abs(covered[chosen].mean() - level)
    return total


# Point predictions


@quick
@given(st.lists(st.tuples(small, small), min_size=1, max_size=12))
def test_rmse_and_mae_agree_with_scikit_learn(table):
    mean, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*table, strict=True))
    out = around(mean, mean - 1, mean + 1)
    assert metrics.rmse(out, y) == pytest.approx(root_mean_squared_error(y, mean))
    assert metrics.mae(out, y) == pytest.approx(mean_absolute_error(y, mean))


@pytest.mark.parametrize("name", ["rmse", "mae"])
def test_a_nan_prediction_is_never_dropped_from_the_mean(name):
    out = around([0.0, math.nan], [-1.0, -1.0], [1.0, 1.0])
    assert math.isnan(getattr(metrics, name)(out, torch.tensor([0.5, 0.5])))


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


def test_a_target_on_a_bound_is_inside():
    out = around([0.0, 0.0], [-1.0, -1.0], [1.0, 1.0])
    target = torch.tensor([1.0, -1.0])
    assert metrics.picp(out, target) == metrics.picp_up(out, target) == metrics.picp_down(out, target) == 1


def test_a_target_on_the_mean_belongs_to_neither_side():
    out = around([0.0, 0.0], [-1.0, -1.0], [1.0, 1.0])
    target = torch.tensor([0.0, 5.0])
    assert metrics.picp_up(out, target) == 0
    assert math.isnan(metrics.picp_down(out, target))
    assert math.isnan(metrics.piece_minus(out, target))


def test_a_nan_bound_does_not_cover():
    out = around([0.0, 0.0], [math.nan, -1.0], [math.nan, 1.0])
    assert metrics.picp(out, torch.tensor([0.5, 0.5])) == 0.5


def test_winkler_is_smallest_at_the_true_quantiles():
    y = torch.tensor(stats.norm.ppf((np.arange(2000) + 0.5) / 2000))

    def score(half):
        return metrics.winkler(around(torch.zeros(2000), torch.full((2000,), -half), torch.full((2000,), half)), y)

    best = score(stats.norm.ppf(0.95))
    assert best < min(score(1.3), score(2.0))
    assert best == pytest.approx(4 / 0.1 * stats.norm.pdf(stats.norm.ppf(0.95)), rel=1e-2)  # closed form


@quick
@given(st.lists(st.tuples(small, small, small, small), min_size=1, max_size=12))
def test_coverage_and_winkler_equal_a_literal_loop(table):
    rows = [(y, mean, mean - abs(down), mean + abs(up)) for y, mean, down, up in table]
    y, mean, low, high = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    out = around(mean, low, high)
    inside = [lo <= t <= hi for t, _, lo, hi in rows]
    assert metrics.picp(out, y) == pytest.approx(sum(inside) / len(rows))
    scores = [hi - lo + 20 * (max(lo - t, 0) + max(t - hi, 0)) for t, _, lo, hi in rows]
    assert metrics.winkler(out, y) == pytest.approx(sum(scores) / len(rows))


def test_pinball_agrees_with_scikit_learn():
    out, y = two_levels()
    losses = {}
    for level in (0.5, 0.9):
        low, high = out.interval(level)
        ends = ((1 - level) / 2, low), ((1 + level) / 2, high)
        losses[level] = np.mean([mean_pinball_loss(y, bound, alpha=t) for t, bound in ends])
        assert metrics.pinball(out, y, level=level) == pytest.approx(losses[level])
    assert metrics.pinball(out, y) == pytest.approx(np.mean(list(losses.values())))


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_pinball_at_one_level_is_a_share_of_the_winkler_score(level):
    out, y = two_levels()
    expected = (1 - level) / 4 * metrics.winkler(out, y, level=level)
    assert metrics.pinball(out, y, level=level) == pytest.approx(expected)


def test_single_precision_is_summed_in_double():
    rows = 20_000
    half = torch.full((rows,), 0.1, dtype=torch.float32)
    out = RegressionPrediction(half, half, half, None, torch.zeros(rows), (0.9,), -half[:, None], half[:, None])
    assert metrics.mpiw(out, torch.zeros(rows)) == pytest.approx(2 * float(half[0]), rel=1e-12)


# PIECE


def test_piece_by_hand_over_bins_of_equally_many_rows():
    out = widths([1, 2, 3, 4, 50, 60, 70, 80], 0.5)
    inside = [True, True, True, True, False, False, True, False]
    # four bins of two rows with coverages 1, 1, 0, 1/2; ten could not be filled with two rows each
    assert metrics.piece(out, targets(inside)) == pytest.approx((0.5 + 0.5 + 0.5 + 0) / 4)
    assert metrics.piece(out, targets(inside), bins=2) == pytest.approx((0.5 + 0.25) / 2)
    assert metrics.piece(out, targets(inside), bins=1) == pytest.approx(abs(5 / 8 - 0.5))


@pytest.mark.parametrize(("rows", "bins"), [(1, 1), (19, 1), (39, 1), (40, 2), (100, 5), (200, 10), (1000, 10)])
def test_a_bin_of_piece_has_rows_enough_to_meet_its_level(rows, bins):
    generator = np.random.default_rng(rows)
    sizes, inside = generator.permutation(rows) + 1.0, generator.random(rows) < 0.8
    parts = np.array_split(inside[np.argsort(sizes)], bins)
    expected = sum(len(part) / rows * abs(part.mean() - 0.95) for part in parts)
    assert metrics.piece(widths(sizes, 0.95), targets(inside)) == pytest.approx(expected)


def test_piece_counts_the_widest_interval_and_that_of_the_authors_does_not():
    sizes, inside = [1.0] * 10 + [2.0], [True] * 10 + [False]
    out, y = widths(sizes, 0.9), targets(inside)
    assert metrics.piece(out, y) == pytest.approx(abs(10 / 11 - 0.9))
    assert metrics.piece_authors(out, y) == pytest.approx(10 / 11 * 0.1)


@quick
@given(st.lists(st.tuples(small, st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=40))
def test_piece_authors_equals_the_published_definition(table):
    y, down, up = (np.array(column, dtype=float) for column in zip(*table, strict=True))
    low, high = -down / 7, up / 7
    got = metrics.piece_authors(of({0.95: (low, high)}), torch.from_numpy(y))
    assert got == pytest.approx(authors_loop(y, low, high, 0.95), abs=1e-9)


def test_piece_sees_what_the_overall_coverage_hides():
    half = torch.cat([torch.full((500,), 1.0), torch.full((500,), 2.0)])
    y = targets([True] * 500 + [True] * 400 + [False] * 100)  # 1.0 and 0.8: 0.9 in all
    out = of({0.9: (-half, half)})
    assert metrics.picp(out, y) == pytest.approx(0.9)
    assert metrics.piece(out, y) == pytest.approx(0.1)


def test_piece_refuses_no_bins():
    with pytest.raises(SettingsError, match="bins >= 1, but got 0"):
        metrics.piece(widths([1.0], 0.9), targets([True]), bins=0)


def test_equal_widths_are_one_bin_but_the_authors_compare_with_one():
    inside = [True] * 30 + [False] * 10
    out, y = widths([1.0] * 40, 0.9), targets(inside)
    assert metrics.piece(out, y) == pytest.approx(0.15)
    assert metrics.piece_authors(out, y) == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["piece", "piece_authors"])
def test_a_perfect_interval_has_little_binned_error(name):
    generator = torch.Generator().manual_seed(0)
    scale = 0.5 + torch.rand(20_000, generator=generator, dtype=torch.float64)
    y = scale * torch.randn(20_000, generator=generator, dtype=torch.float64)
    half = scale * stats.norm.ppf(0.975)
    assert getattr(metrics, name)(of({0.95: (-half, half)}), y) < 0.01


def test_a_nan_bound_is_a_miss_among_the_widest_and_no_answer_for_the_authors():
    out = widths([1.0, math.nan], 0.5)
    assert metrics.piece(out, torch.zeros(2)) == 0
    assert metrics.piece(out[1:], torch.zeros(1)) == 0.5
    assert math.isnan(metrics.piece_authors(out, torch.zeros(2)))


# What chance alone leaves


@quick
@given(st.integers(1, 400), st.floats(0.02, 0.98))
def test_piece_floor_is_the_mean_deviation_of_a_binomial(rows, level):
    hits = np.arange(rows + 1)
    expected = stats.binom.pmf(hits, rows, level) @ np.abs(hits / rows - level)
    assert metrics.piece_floor(rows, level) == pytest.approx(expected, rel=1e-9)


def test_floors_of_a_side_count_the_targets_on_it():
    out, y = two_levels()
    for name, rows in (("plus", int((y > 0).sum())), ("minus", int((y < 0).sum()))):
        law = stats.binom(rows, 0.9)
        expected = sum(law.pmf(k) * abs(k / rows - 0.9) for k in range(rows + 1))
        assert getattr(metrics, f"piece_floor_{name}")(out, y) == pytest.approx(expected, rel=1e-6)
    assert math.isnan(metrics.piece_floor_minus(out, out.mean + 1))
    assert math.isfinite(metrics.piece_floor_plus(out, out.mean + 1))


def test_piece_floor_is_what_perfect_bounds_come_to():
    generator = torch.Generator().manual_seed(0)
    out = widths([1.0] * 25, 0.95)
    trials = [metrics.piece(out, targets(torch.rand(25, generator=generator) < 0.95)) for _ in range(2000)]
    assert np.mean(trials) == pytest.approx(metrics.piece_floor(25, 0.95), abs=4 * np.std(trials) / math.sqrt(2000))


def test_piece_floor_at_its_ends():
    assert math.isnan(metrics.piece_floor(0, 0.9))
    assert metrics.piece_floor(1, 0.9) == pytest.approx(2 * 0.9 * 0.1)
    assert metrics.piece_floor(100_000, 0.95) == pytest.approx(math.sqrt(2 / math.pi * 0.95 * 0.05 / 1e5), rel=1e-3)


@pytest.mark.parametrize(("rows", "level"), [(-1, 0.9), (10, 0.0), (10, 1.0)])
def test_piece_floor_refuses_what_is_not_a_binomial(rows, level):
    wrong = rows if rows < 0 else level
    with pytest.raises(SettingsError, match=rf"Expected .* but got {wrong}; give"):
        metrics.piece_floor(rows, level)


# What all of them promise


@every_metric
def test_a_flat_target_serves_an_output_with_one_column(name):
    out, target = four_rows()
    column = around(out.mean[:, None], out.lower[:, None], out.upper[:, None])
    metric = getattr(metrics, name)
    assert metric(column, target) == metric(column, target[:, None]) == metric(out, target)


@pytest.mark.parametrize("name", ["picp", "rmse"])
@pytest.mark.parametrize("shape", [(2, 3), (6,), (3, 3)], ids=["transposed", "flattened", "too many"])
def test_a_target_of_another_shape_is_refused_not_reshaped(name, shape):
    out = around(torch.zeros(3, 2), -torch.ones(3, 2), torch.ones(3, 2))
    with pytest.raises(ShapeError):
        getattr(metrics, name)(out, torch.zeros(shape))


@every_interval
def test_a_level_may_be_named_and_the_highest_is_the_default(name):
    out, y = two_levels()
    metric = getattr(metrics, name)
    single = {level: of({level: out.interval(level)}) for level in (0.5, 0.9)}
    for level, alone in single.items():
        assert metric(out, y, level=level) == pytest.approx(metric(alone, y))
    if name != "pinball":
        assert metric(out, y) == metric(out, y, level=0.9)
    with pytest.raises(SettingsError, match=r"but got 0.7"):
        metric(out, y, level=0.7)


@every_metric
def test_the_order_of_the_rows_does_not_matter(name):
    out, y = two_levels()
    out = of({0.9: (out.lower.round(), out.upper.round())})  # many ties of width
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    metric = getattr(metrics, name)
    assert metric(out[order], y[order]) == pytest.approx(metric(out, y))


@every_metric
@quick
@given(factor=st.floats(0.1, 10), shift=st.floats(-5, 5))
def test_units_of_the_target_change_nothing_but_the_units(name, factor, shift):
    out, y = two_levels()
    bounds = {level: tuple(factor * b + shift for b in out.interval(level)) for level in out.levels}
    moved = of(bounds, factor * out.mean + shift)
    metric = getattr(metrics, name)
    scale = factor if metrics.METRICS[name].unit == "target" else 1
    assert metric(moved, factor * y + shift) == pytest.approx(scale * metric(out, y), rel=1e-6)


@every_metric
def test_missing_targets_do_not_count_and_nothing_is_nan(name):
    out, y = two_levels()
    metric = getattr(metrics, name)
    holes = y.clone()
    holes[::3] = math.nan
    kept = ~holes.isnan()
    assert metric(out, holes) == pytest.approx(metric(out[kept], y[kept]))
    assert math.isnan(metric(out, torch.full_like(y, math.nan)))
    assert math.isnan(metric(out[:0], y[:0]))
