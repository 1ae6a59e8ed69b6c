"""Losses against literal row-by-row Python, scikit-learn and the definition of a quantile."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_pinball_loss, mean_squared_error

from properties import examples
from splitpoint.losses import coverage_loss, masked_mse, pinball_loss

quick = examples(40)
FORMS = ["paper", "authors"]
quarters = st.integers(0, 40).map(lambda n: n / 4)
rows = st.lists(st.tuples(quarters, quarters, st.booleans()), min_size=1, max_size=25)
dyadic_levels = st.sampled_from([0.25, 0.5, 0.75, 0.875])


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def columns(table):
    size, bound, mask = zip(*table, strict=True)
    return tensor(size), tensor(bound), torch.tensor(mask)


def coverage_by_hand(table, level, form):
    """E19 and the authors' form, one row at a time."""
    kept = [(size, bound) for size, bound, counts in table if counts]
    if not kept:
        return 0.0
    share = sum(size <= bound for size, bound in kept) / len(kept)
    if share < level:
        misses = [size - bound for size, bound in kept if size > bound]
    elif share > level:
        misses = [bound - size for size, bound in kept if size < bound]
    else:
        return 0.0
    if form == "paper":
        return sum(misses) / len(kept)
    return abs(level - share) * sum(misses) / len(misses) if misses else 0.0


def mse_with_any_level(size, bound, level, mask, dim=0):
    return masked_mse(bound, size, mask, dim)


LOSSES = {
    "masked_mse": mse_with_any_level,
    "pinball": pinball_loss,
    "coverage, paper": lambda *args, **kw: coverage_loss(*args, **kw, form="paper"),
    "coverage, authors": lambda *args, **kw: coverage_loss(*args, **kw, form="authors"),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


# Values


@pytest.mark.parametrize("form", FORMS)
@quick
@given(rows, dyadic_levels)
def test_coverage_loss_equals_the_formula_row_by_row(form, table, level):
    got = coverage_loss(*columns(table)[:2], tensor(level), columns(table)[2], form=form)
    assert got.item() == pytest.approx(coverage_by_hand(table, level, form), abs=1e-6)


@pytest.mark.parametrize(
    ("form", "bound", "expected"),
    [
        ("paper", 2.0, (1 + 2) / 4),  # sizes 1 2 3 4, half covered: too little
        ("authors", 2.0, 0.25 * (1 + 2) / 2),
        ("paper", 5.0, (4 + 3 + 2 + 1) / 4),  # all covered: too much
        ("authors", 5.0, 0.25 * (4 + 3 + 2 + 1) / 4),
        ("paper", 3.0, 0.0),  # three of four covered: just right
        ("authors", 3.0, 0.0),
    ],
)
def test_coverage_loss_by_hand(form, bound, expected):
    size, all_rows = tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4, dtype=torch.bool)
    got = coverage_loss(size, torch.full_like(size, bound), tensor(0.75), all_rows, form=form)
    assert got.item() == pytest.approx(expected)


def test_the_authors_form_is_the_default():
    size, bound, all_rows = tensor([1.0, 2.0]), tensor([0.5, 0.5]), torch.ones(2, dtype=torch.bool)
    assert coverage_loss(size, bound, tensor(0.5), all_rows).item() == pytest.approx(0.5 * 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_coverage_loss_is_zero_at_exactly_the_target_coverage(form, dtype):
    size = torch.arange(1, 11, dtype=dtype)
    level, all_rows = tensor([0.9], dtype), torch.ones(10, 1, dtype=torch.bool)
    got = coverage_loss(size[:, None], torch.full((10, 1), 9.5, dtype=dtype), level, all_rows, form=form)
    assert got.tolist() == [0.0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("bound", "sign"), [(1.5, -1), (9.5, 1)])
def test_descending_the_coverage_loss_raises_a_bound_that_covers_too_little_and_lowers_one_too_wide(form, bound, sign):
    size, all_rows = torch.arange(1.0, 11.0), torch.ones(10, dtype=torch.bool)
    q = torch.tensor(bound, requires_grad=True)
    coverage_loss(size, q.expand(10), torch.tensor(0.5), all_rows, form=form).backward()
    assert sign * q.grad.item() > 0


def test_descending_the_authors_form_ends_at_the_target_coverage():
    size = torch.rand(400, generator=torch.Generator().manual_seed(0))
    q = torch.tensor(0.1, requires_grad=True)
    for _ in range(60):
        loss = coverage_loss(size, q.expand(400), torch.tensor(0.9), torch.ones(400, dtype=torch.bool))
        (slope,) = torch.autograd.grad(loss, q)
        q = (q - 0.5 * slope).detach().requires_grad_()
    assert float((size <= q).double().mean()) == pytest.approx(0.9, abs=0.01)


@quick
@given(rows, st.floats(0.01, 0.99))
def test_pinball_loss_agrees_with_scikit_learn(table, level):
    size, bound, mask = columns(table)
    got = pinball_loss(size, bound, tensor(level), mask).item()
    expected = mean_pinball_loss(size[mask], bound[mask], alpha=level) if mask.any() else 0.0
    assert got == pytest.approx(expected, abs=1e-9)


@quick
@given(st.lists(quarters, min_size=1, max_size=25), st.floats(0.01, 0.99))
def test_no_bound_has_a_smaller_pinball_loss_than_the_empirical_quantile(sizes, level):
    size, mask = tensor(sizes), torch.ones(len(sizes), dtype=torch.bool)

    def loss(bound):
        return pinball_loss(size, torch.full_like(size, bound), tensor(level), mask).item()

    best = loss(float(np.quantile(sizes, level, method="inverted_cdf")))
    assert all(best <= loss(bound / 8) + 1e-12 for bound in range(0, 81, 8))


def test_the_empirical_quantile_beats_clearly_wrong_bounds():
    size, mask = torch.arange(1, 101).double(), torch.ones(100, dtype=torch.bool)
    losses = [pinball_loss(size, tensor(b).expand(100), tensor(0.9), mask).item() for b in (50.0, 90.0, 99.0)]
    assert losses[1] < min(losses[0], losses[2])


@quick
@given(rows)
def test_masked_mse_agrees_with_scikit_learn(table):
    target, prediction, mask = columns(table)
    expected = mean_squared_error(target[mask], prediction[mask]) if mask.any() else 0.0
    assert masked_mse(prediction, target, mask).item() == pytest.approx(expected, abs=1e-12)


def test_masked_mse_by_hand():
    values, mask = (
        tensor([[1.0, 2.0], [3.0, 4.0], [8.0, 9.0]]),
        torch.tensor([[True, False], [True, False], [False] * 2]),
    )
    assert masked_mse(values, torch.zeros(3, 1), mask).tolist() == [5.0, 0.0]
    assert masked_mse(values, torch.zeros(3, 1), mask, dim=1).tolist() == [1.0, 9.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_mse_stays_finite_when_the_sum_overflows(dtype):
    values = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    assert masked_mse(values, torch.zeros((), dtype=dtype), torch.ones(4, dtype=torch.bool)).isfinite()


# Empty sides, masks, stacks


@every_loss
def test_a_mask_without_a_row_gives_zero_loss_and_zero_gradient(loss):
    bound = tensor([1.0, 2.0]).requires_grad_()
    value = loss(tensor([3.0, 0.5]), bound, tensor(0.9), torch.zeros(2, dtype=torch.bool))
    value.backward()
    assert value.item() == 0
    assert bound.grad.tolist() == [0.0, 0.0]


@every_loss
def test_an_empty_tensor_gives_zero_loss(loss):
    bound = torch.zeros(0, requires_grad=True)
    value = loss(torch.zeros(0), bound, torch.tensor(0.9), torch.zeros(0, dtype=torch.bool))
    value.backward()
    assert value.item() == 0


@every_loss
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_sizes_under_a_false_mask_reach_neither_loss_nor_gradient(loss, bad):
    mask = torch.tensor([True, False, True, True])
    results = []
    for filler in (bad, 0.0):
        bound = tensor([1.0, 2.0, 3.0, 1.0]).requires_grad_()
        value = loss(tensor([2.0, filler, 1.0, 4.0]), bound, tensor(0.9), mask)
        value.backward()
        results.append((value.item(), bound.grad.tolist()))
    assert results[0] == results[1]
    assert all(map(math.isfinite, [results[0][0], *results[0][1]]))
    assert any(results[0][1])
    assert results[0][1][1] == 0


@every_loss
def test_bad_bounds_under_a_false_mask_leave_the_other_gradients_alone(loss):
    bound = tensor([1.0, math.nan, 3.0]).requires_grad_()
    value = loss(tensor([2.0, 5.0, 1.0]), bound, tensor(0.9), torch.tensor([True, False, True]))
    value.backward()
    assert value.isfinite()
    assert bound.grad.isfinite().all()


@every_loss
def test_each_member_of_a_stack_has_the_loss_and_gradient_of_its_own_call(loss):
    generator = torch.Generator().manual_seed(3)
    size = torch.rand(5, 12, 2, generator=generator, dtype=torch.float64)
    start = torch.rand(5, 12, 2, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 12, 2, generator=generator) > 0.4
    mask[2] = False
    level = tensor([0.5, 0.875])
    stacked = start.clone().requires_grad_()
    together = loss(size, stacked, level, mask, dim=1)
    together.sum().backward()
    assert together.shape == (5, 2)
    for member in range(5):
        for output in range(2):
            alone = start[member, :, output].clone().requires_grad_()
            single = loss(size[member, :, output], alone, level[output], mask[member, :, output])
            single.backward()
            torch.testing.assert_close(together[member, output], single)
            torch.testing.assert_close(stacked.grad[member, :, output], alone.grad)


@every_loss
def test_the_row_axis_may_be_anywhere(loss):
    generator = torch.Generator().manual_seed(4)
    size, bound = torch.rand(2, 3, 9, generator=generator, dtype=torch.float64).unbind()
    mask = torch.rand(3, 9, generator=generator) > 0.3
    first = loss(size.T, bound.T, tensor(0.75), mask.T)
    last = loss(size, bound, tensor(0.75), mask, dim=-1)
    torch.testing.assert_close(first, last)


@every_loss
@pytest.mark.parametrize("shape", [(6, 1), (1, 3), (1, 1)])
def test_a_mask_that_broadcasts_counts_like_the_mask_written_out(loss, shape):
    generator = torch.Generator().manual_seed(5)
    size, bound = torch.rand(2, 6, 3, generator=generator, dtype=torch.float64).unbind()
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1)[1:2] = False
    short = loss(size, bound, tensor(0.75), mask)
    torch.testing.assert_close(short, loss(size, bound, tensor(0.75), mask.expand(6, 3)))


@every_loss
def test_permuting_the_rows_changes_nothing(loss):
    generator = torch.Generator().manual_seed(6)
    size, bound = torch.rand(2, 30, generator=generator, dtype=torch.float64).unbind()
    mask, order = torch.rand(30, generator=generator) > 0.3, torch.randperm(30, generator=generator)
    before, after = (
        loss(size, bound, tensor(0.75), mask),
        loss(size[order], bound[order], tensor(0.75), mask[order]),
    )
    torch.testing.assert_close(before, after)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_keep_the_precision_of_their_inputs(loss, dtype):
    size, mask = torch.rand(6, 2, dtype=dtype), torch.ones(6, 2, dtype=torch.bool)
    assert loss(size, size + 1, tensor([0.5, 0.9], dtype), mask).dtype == dtype
