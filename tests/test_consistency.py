"""The method's pure functions, against the theorems of the paper, exact fractions, scipy and hand numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats

from properties import examples
from splitpoint.consistency import (
    Mars,
    calibration_gap,
    class_mars,
    class_sds,
    corrected_probs,
    discrepancy,
    entropy,
    harmonic_mean,
    implied_sides,
    project_to_simplex,
    sample_mars,
    scale_factors,
    sds,
    zero_included_mars,
    zero_included_residuals,
)

quick = examples(40)
integers = st.integers(-1000, 1000)
samples = st.lists(integers, min_size=2, max_size=30)
positive = st.integers(1, 200)
DTYPES = [torch.float32, torch.float64]


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def mars_of(total, up, down, dtype=torch.float64):
    return Mars(tensor(total, dtype), tensor(up, dtype), tensor(down, dtype))


def zero_mean(values):
    """Residuals at the sample mean times the sample size: integers that sum to exactly 0."""
    return tensor([len(values) * value - sum(values) for value in values])


def mean_fraction(values):
    return Fraction(sum(values), len(values)) if values else Fraction(0)


def non_negative(dtype):
    """Every finite non-negative number of `dtype`, the awkward ones often."""
    info = torch.finfo(dtype)
    awkward = [0.0, info.smallest_normal, info.smallest_normal / 8, 1.0, 1e38, info.max / 2, info.max]
    width = 32 if dtype == torch.float32 else 64
    return st.one_of(st.sampled_from(awkward), st.floats(0, info.max, width=width, allow_subnormal=True))


def rows_of_probs(classes=3):
    weights = st.lists(st.integers(0, 50), min_size=classes, max_size=classes).filter(any)
    return weights.map(lambda w: tensor(w) / sum(w))


# Sample MARs


def test_sample_mars_average_each_side_and_leave_zeros_out():
    mars = sample_mars(tensor([3.0, 1.0, -4.0, 0.0]))
    assert [m.item() for m in mars] == pytest.approx([8 / 3, 2.0, 4.0])


def test_sample_mars_leave_nan_residuals_out():
    mars = sample_mars(tensor([3.0, math.nan, 1.0, -4.0]))
    assert [m.item() for m in mars] == pytest.approx([8 / 3, 2.0, 4.0])


@pytest.mark.parametrize(
    ("residual", "expected"),
    [([2.0, 4.0], (3.0, 3.0, 0.0)), ([-2.0, -4.0], (3.0, 0.0, 3.0)), ([0.0, 0.0], (0.0, 0.0, 0.0))],
)
def test_sample_mars_of_an_empty_side_are_zero(residual, expected):
    assert tuple(m.item() for m in sample_mars(tensor(residual))) == expected


@quick
@given(samples)
def test_sample_mars_equal_the_exact_means(values):
    mars = sample_mars(tensor(values))
    sizes = [abs(v) for v in values]
    exact = [
        mean_fraction([s for s in sizes if s]),
        mean_fraction([v for v in values if v > 0]),
        mean_fraction([-v for v in values if v < 0]),
    ]
    assert [m.item() for m in mars] == pytest.approx([float(e) for e in exact], rel=1e-12)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_sample_mars_work_along_any_axis(dim):
    residual = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    array = np.moveaxis(residual.numpy(), dim, -1)
    for got, pick in zip(sample_mars(residual, dim), (array != 0, array > 0, array < 0), strict=True):
        counts = np.maximum(pick.sum(-1), 1)
        np.testing.assert_allclose(got.numpy(), (np.abs(array) * pick).sum(-1) / counts, rtol=1e-12)


# The harmonic identity


@quick
@given(samples)
def test_total_mar_is_the_harmonic_mean_of_the_sides_on_any_zero_mean_sample(values):
    mars = sample_mars(zero_mean(values))
    torch.testing.assert_close(mars.total, harmonic_mean(mars.up, mars.down), rtol=1e-12, atol=0)


@quick
@given(samples)
def test_sds_and_discrepancy_vanish_at_the_sample_mean(values):
    residual = zero_mean(values)
    scale = float(residual.abs().max())
    assert float(sds(sample_mars(residual))) <= 1e-12 * scale**2
    assert float(discrepancy(sample_mars(residual))) <= 1e-12 * scale


@quick
@given(samples, integers)
def test_discrepancy_equals_the_closed_form_of_the_proof_at_any_split_point(values, split):
    residual = [value - split for value in values]
    assume(any(residual))
    up, down = [r for r in residual if r > 0], [-r for r in residual if r < 0]
    a, b = mean_fraction(up), mean_fraction(down)
    share_up, share_down = Fraction(len(up), len(values)), Fraction(len(down), len(values))
    bias = share_up * a - share_down * b
    assert bias == mean_fraction(residual)
    exact = abs(bias * (a - b)) / ((share_up + share_down) * (a + b))
    got = float(discrepancy(sample_mars(tensor(residual))))
    assert got == pytest.approx(float(exact), rel=1e-9, abs=1e-9)


@quick
@given(samples, integers)
def test_sds_is_the_discrepancy_times_the_sum_of_the_sides(values, split):
    mars = sample_mars(tensor(values) - split)
    torch.testing.assert_close(sds(mars), discrepancy(mars) * (mars.up + mars.down), rtol=1e-9, atol=1e-7)


@quick
@given(samples, integers, st.integers(-20, 20).filter(bool), integers)
def test_scaling_and_shifting_the_target_moves_mars_and_scores_as_they_must(values, split, a, b):
    y, t = tensor(values), tensor(split)
    before, after = sample_mars(y - t), sample_mars((a * y + b) - (a * t + b))
    sides = (before.up, before.down) if a > 0 else (before.down, before.up)
    expected = Mars(abs(a) * before.total, abs(a) * sides[0], abs(a) * sides[1])
    torch.testing.assert_close(tuple(after), tuple(expected), rtol=1e-12, atol=0)
    torch.testing.assert_close(sds(after), a**2 * sds(before), rtol=1e-9, atol=1e-5)
    torch.testing.assert_close(discrepancy(after), abs(a) * discrepancy(before), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize(("a", "b", "expected"), [(2, 6, 3), (1, 1, 1), (0, 5, 0), (0, 0, 0), (1, 3, 1.5)])
def test_harmonic_mean_by_hand(a, b, expected):
    assert harmonic_mean(tensor(float(a)), tensor(float(b))).item() == expected


@quick
@given(positive, positive)
def test_harmonic_mean_agrees_with_scipy(a, b):
    assert harmonic_mean(tensor(a), tensor(b)).item() == pytest.approx(stats.hmean([a, b]), rel=1e-12)


def test_discrepancy_and_sds_by_hand():
    mars = mars_of(4.0, 2.0, 6.0)
    assert discrepancy(mars).item() == 1.0  # |4 - 3|
    assert sds(mars).item() == 8.0  # |2*2*6 - 4*(2 + 6)|


def test_sds_vanishes_where_both_sides_and_the_total_are_equal():
    assert sds(mars_of(5.0, 5.0, 5.0)).item() == 0


@quick
@given(positive, positive, positive)
def test_sds_equals_the_printed_formula(z, up, down):
    assert sds(mars_of(z, up, down)).item() == pytest.approx(abs(2 * up * down - z * (up + down)), abs=1e-9)


@quick
@given(positive, positive, positive, st.integers(-200, 200))
def test_sds_is_homogeneous_of_degree_two_over_the_whole_float_range(z, up, down, exponent):
    a = 2.0**exponent
    got = sds(mars_of(a * z, a * up, a * down)) / a / a
    torch.testing.assert_close(got, sds(mars_of(z, up, down)), rtol=1e-12, atol=0)


# Calibration factors


def paper_factor(z, own, other):
    """E28 and E29 in exact fractions: max(own, implied) / own, 1 where the denominator is not positive."""
    denominator = 2 * other - z
    return max(Fraction(1), Fraction(z * other, denominator) / own) if denominator > 0 else Fraction(1)


def test_scale_factors_by_hand():
    up, down = scale_factors(mars_of(1.5, 1.0, 1.5), limit=None)
    assert (up.item(), down.item()) == pytest.approx((1.5, 2.0))


def test_implied_sides_by_hand():
    up, down = implied_sides(mars_of(1.5, 1.0, 1.5))
    assert (up.item(), down.item()) == pytest.approx((1.5, 3.0))


@quick
@given(samples)
def test_implied_sides_are_the_sides_themselves_when_the_identity_holds(values):
    residual = zero_mean(values)
    assume(residual.any())
    mars = sample_mars(residual)
    torch.testing.assert_close(implied_sides(mars), (mars.up, mars.down), rtol=1e-9, atol=0)


@quick
@given(samples)
def test_consistent_mars_ask_for_no_widening(values):
    mars = sample_mars(zero_mean(values))
    assert [s.item() for s in scale_factors(mars)] == pytest.approx([1, 1], abs=1e-9)


@quick
@given(positive, positive, positive)
def test_factors_without_limit_are_the_papers(z, up, down):
    got = scale_factors(mars_of(z, up, down), limit=None)
    expected = [float(paper_factor(z, up, down)), float(paper_factor(z, down, up))]
    assert [s.item() for s in got] == pytest.approx(expected, rel=1e-9)


@quick
@given(positive, positive, positive, st.sampled_from([1.5, 2.0, 4.0]))
def test_bounded_factors_are_the_papers_where_those_are_moderate(z, up, down, limit):
    got = scale_factors(mars_of(z, up, down), limit)
    for factor, own, other in ((got[0], up, down), (got[1], down, up)):
        if 2 - Fraction(z, other) >= 1 / Fraction(limit):
            assert factor.item() == pytest.approx(float(min(limit, paper_factor(z, own, other))), rel=1e-9)


@quick
@given(positive, positive, positive, st.sampled_from([1.5, 2.0, 4.0]))
def test_factors_reach_the_limit_where_the_papers_fall_silently_to_one(z, up, down, limit):
    got = scale_factors(mars_of(z, up, down), limit)
    for factor, own, other in ((got[0], up, down), (got[1], down, up)):
        if z >= 2 * other and z >= own:
            assert factor.item() == limit


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_stay_between_one_and_the_limit_for_any_mars(dtype):
    @quick
    @given(*[non_negative(dtype)] * 3, st.sampled_from([1.0, 1.5, 2.0, 10.0]))
    def check(z, up, down, limit):
        for factor in scale_factors(mars_of(z, up, down, dtype), limit):
            assert 1 <= factor.item() <= limit

    check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_grow_with_the_total_and_shrink_with_either_side(dtype):
    @quick
    @given(*[non_negative(dtype)] * 4, st.sampled_from([1.5, 2.0, 10.0]))
    def check(z, up, down, other, limit):
        def factors(*mars):
            return torch.stack(scale_factors(mars_of(*mars, dtype), limit))

        low, high = min(z, other), max(z, other)
        assert (factors(low, up, down) <= factors(high, up, down)).all()
        low, high = min(up, other), max(up, other)
        assert (factors(z, low, down) >= factors(z, high, down)).all()
        low, high = min(down, other), max(down, other)
        assert (factors(z, up, low) >= factors(z, up, high)).all()

    check()


# Finite everywhere, any shape, any precision


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "function",
    [
        lambda mars: sample_mars(torch.stack(mars)),
        lambda mars: sample_mars(torch.stack([mars.total, -mars.up, mars.down])),
        lambda mars: sample_mars(mars.total.expand(10)),
        lambda mars: harmonic_mean(mars.up, mars.down),
        discrepancy,
        sds,
        scale_factors,
        lambda mars: scale_factors(mars, limit=None),
        lambda mars: calibration_gap(Mars(*(mar[None] for mar in mars))),
        lambda mars: class_sds(tensor([0.25, 0.75], mars.total.dtype), torch.stack(mars[:2])),
        lambda mars: project_to_simplex(torch.stack(mars), torch.full((3,), 1 / 3, dtype=mars.total.dtype)),
        lambda mars: corrected_probs(tensor([1.0], mars.total.dtype), Mars(*(mar[None] for mar in mars)), 0.01),
    ],
    ids=[
        "sample_mars",
        "sample_mars of both signs",
        "sample_mars of equal rows",
        "harmonic_mean",
        "discrepancy",
        "sds",
        "scale_factors",
        "scale_factors without limit",
        "calibration_gap",
        "class_sds",
        "project_to_simplex",
        "corrected_probs",
    ],
)
def test_every_function_is_finite_and_keeps_its_precision_for_any_finite_mars(function, dtype):
    largest, smallest = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal / 8

    @examples(15)
    @example(0.0, 0.0, 0.0)
    @example(smallest, smallest, smallest)
    @example(1e38, 1e38, 1e38)
    @example(largest, largest, largest)
    @example(largest, smallest, 0.0)
    @given(*[non_negative(dtype)] * 3)
    def check(z, up, down):
        result = function(mars_of(z, up, down, dtype))
        for part in [result] if isinstance(result, torch.Tensor) else result:
            assert part.dtype == dtype
            assert part.isfinite().all()

    check()


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 3, 4)])
@pytest.mark.parametrize("function", [discrepancy, sds, scale_factors, lambda m: harmonic_mean(m.up, m.down)])
def test_functions_of_mars_act_element_by_element_on_any_shape(function, shape):
    generator = torch.Generator().manual_seed(1)
    mars = Mars(*(torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3)))
    whole = function(mars)
    for number, part in enumerate([whole] if isinstance(whole, torch.Tensor) else whole):
        assert part.shape == shape
        for index in np.ndindex(*shape):
            single = function(Mars(*(mar[index] for mar in mars)))
            assert part[index] == (single if isinstance(single, torch.Tensor) else single[number])


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_functions_over_classes_take_the_class_axis_anywhere(dim):
    generator = torch.Generator().manual_seed(2)
    probs = torch.rand(2, 4, 3, generator=generator, dtype=torch.float64).softmax(-1)
    mars = Mars(*(0.1 * torch.rand(2, 4, 3, generator=generator, dtype=torch.float64) for _ in range(3)))
    moved, moved_mars = probs.movedim(-1, dim), Mars(*(mar.movedim(-1, dim) for mar in mars))
    torch.testing.assert_close(class_sds(moved, moved_mars.total, dim), class_sds(probs, mars.total))
    torch.testing.assert_close(calibration_gap(moved_mars, dim), calibration_gap(mars))
    torch.testing.assert_close(entropy(moved, dim), entropy(probs))
    for delta0 in (0.1, 1.0):
        torch.testing.assert_close(
            corrected_probs(moved, moved_mars, delta0, dim).movedim(dim, -1),
            corrected_probs(probs, mars, delta0),
        )


# Classification


@quick
@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 63))
def test_class_mars_are_the_mars_of_a_sample_of_labels(rows, hits, sixtyfourths):
    hits, p = min(hits, rows), sixtyfourths / 64
    labels = tensor([1.0] * hits + [0.0] * (rows - hits))
    sample, formula = sample_mars(labels - p), class_mars(tensor(p), tensor(hits / rows))
    assert formula.total.item() == pytest.approx(sample.total.item(), abs=1e-12)
    if hits:
        assert formula.up.item() == pytest.approx(sample.up.item(), abs=1e-12)
    if hits < rows:
        assert formula.down.item() == pytest.approx(sample.down.item(), abs=1e-12)


@quick
@given(rows_of_probs(), rows_of_probs())
def test_class_sds_of_class_mars_is_the_weighted_distance_of_frequency_and_softmax(p, frequency):
    got = class_sds(p, class_mars(p, frequency).total)
    expected = sum(abs(f - q) * abs(1 - 2 * q) for f, q in zip(frequency.tolist(), p.tolist(), strict=True))
    assert got.item() == pytest.approx(expected, abs=1e-12)


@quick
@given(rows_of_probs(), rows_of_probs())
def test_class_sds_is_the_sum_over_classes_of_the_regression_sds(p, frequency):
    mars = class_mars(p, frequency)
    assert class_sds(p, mars.total).item() == pytest.approx(sds(mars).sum().item(), abs=1e-12)


def test_class_sds_by_hand():
    assert class_sds(tensor([0.9, 0.1]), tensor([0.18, 0.28])).item() == pytest.approx(0.1)


def test_zero_included_residuals_by_hand():
    mars = zero_included_residuals(tensor([0.7, 0.2, 0.1]), tensor([0.0, 1.0, 0.0]))
    torch.testing.assert_close(tuple(mars), (tensor([0.7, 0.8, 0.1]), tensor([0, 0.8, 0]), tensor([0.7, 0, 0.1])))


@quick
@given(rows_of_probs(), rows_of_probs())
def test_zero_included_mars_add_up_and_give_back_the_frequency(p, frequency):
    mars = zero_included_mars(p, frequency)
    torch.testing.assert_close(mars.total, mars.up + mars.down, rtol=0, atol=1e-12)
    torch.testing.assert_close(p + mars.up - mars.down, frequency, rtol=0, atol=1e-12)
    assert calibration_gap(mars).item() == pytest.approx(0, abs=1e-12)


@quick
@given(rows_of_probs(), rows_of_probs())
def test_zero_included_mars_are_the_expected_zero_included_residuals(p, frequency):
    hit, miss = (zero_included_residuals(p, torch.full_like(p, label)) for label in (1.0, 0.0))
    expected = [frequency * h + (1 - frequency) * m for h, m in zip(hit, miss, strict=True)]
    torch.testing.assert_close(list(zero_included_mars(p, frequency)), expected, rtol=0, atol=1e-12)


def test_calibration_gap_by_hand():
    mars = mars_of([0.5, 0.3], [0.2, 0.2], [0.2, 0.2])
    assert calibration_gap(mars).item() == pytest.approx(0.2)


@quick
@given(rows_of_probs(), rows_of_probs())
def test_perfect_mars_correct_the_softmax_to_the_true_frequency(p, frequency):
    got = corrected_probs(p, zero_included_mars(p, frequency), delta0=0.01)
    torch.testing.assert_close(got, frequency, rtol=0, atol=1e-12)


def test_corrected_probs_by_hand_inside_and_outside_the_simplex():
    inside = corrected_probs(tensor([0.9, 0.1]), mars_of([0.3, 0.3], [0.0, 0.3], [0.3, 0.0]), 0.01)
    torch.testing.assert_close(inside, tensor([0.6, 0.4]))
    up, down = [0.7, 0.0, 0.0], [0.0, 0.4, 0.1]  # moves the row to (1.2, -0.1, 0.1)
    outside = corrected_probs(tensor([0.5, 0.3, 0.2]), mars_of([0.7, 0.4, 0.1], up, down), 0.01)
    torch.testing.assert_close(outside, tensor([10 / 11, 0.0, 1 / 11]))


unit = st.floats(0, 1, width=32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_corrected_probs_stay_on_the_simplex_whatever_the_heads_say(dtype):
    @quick
    @given(rows_of_probs(), *[st.lists(unit, min_size=3, max_size=3)] * 3, st.sampled_from([0.01, 1.0, 100.0]))
    def check(p, total, up, down, delta0):
        got = corrected_probs(p.to(dtype), mars_of(total, up, down, dtype), delta0)
        assert ((got >= 0) & (got <= 1)).all()
        assert got.sum().item() == pytest.approx(1, abs=1e-5)

    check()


def test_rows_keep_their_softmax_bit_for_bit_where_the_gate_stays_shut():
    probs = tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]], torch.float32)
    up, down = tensor([[0.0, 0.1, 0.0]] * 2, torch.float32), tensor([[0.1, 0.0, 0.0]] * 2, torch.float32)
    total = up + down
    total[1, 2] += 0.5
    got = corrected_probs(probs, Mars(total, up, down), delta0=0.25)
    torch.testing.assert_close(got[0], tensor([0.6, 0.3, 0.1], torch.float32))
    assert torch.equal(got[1], probs[1])


def test_the_gate_opens_only_strictly_below_delta0():
    probs, mars = tensor([0.5, 0.5]), mars_of([0.5, 0.5], [0.25, 0.0], [0.0, 0.25])  # gap exactly 0.5
    assert corrected_probs(probs, mars, delta0=0.5).tolist() == [0.5, 0.5]
    assert corrected_probs(probs, mars, delta0=0.5 + 1e-9).tolist() == [0.75, 0.25]


def test_project_to_simplex_clips_and_renormalises():
    got = project_to_simplex(tensor([[1.5, 0.5, -1.0], [0.2, 0.2, 0.1]]), tensor([[1.0, 0.0, 0.0]] * 2))
    torch.testing.assert_close(got, tensor([[2 / 3, 1 / 3, 0.0], [0.4, 0.4, 0.2]]))


@pytest.mark.parametrize("nothing", [[-1.0, 0.0], [math.nan, 0.5], [-3.0, -0.1]])
def test_project_to_simplex_takes_the_fallback_where_nothing_is_left(nothing):
    assert project_to_simplex(tensor(nothing), tensor([0.3, 0.7])).tolist() == [0.3, 0.7]


@quick
@given(rows_of_probs())
def test_project_to_simplex_leaves_the_simplex_as_it_is(p):
    torch.testing.assert_close(project_to_simplex(p, torch.zeros(3, dtype=p.dtype)), p)


@pytest.mark.parametrize("dtype", DTYPES)
def test_project_to_simplex_gives_rows_that_sum_to_one_even_for_denormal_scores(dtype):
    tiny = torch.finfo(dtype).tiny
    for size in (tiny, tiny / 4, tiny / 1024):
        got = project_to_simplex(tensor([size, 0.0], dtype), tensor([0.5, 0.5], dtype))
        assert got.sum().item() == pytest.approx(1, abs=1e-5)


@quick
@given(rows_of_probs(5))
def test_entropy_agrees_with_scipy(p):
    got = entropy(p).item()
    assert got == pytest.approx(stats.entropy(p.numpy()), abs=1e-12)
    assert -1e-12 <= got <= math.log(5) + 1e-12


def test_entropy_of_certainty_is_zero_and_of_ignorance_the_log_of_the_class_count():
    rows = tensor([[1.0, 0.0, 0.0, 0.0], [0.25] * 4])
    assert entropy(rows).tolist() == pytest.approx([0, math.log(4)])
