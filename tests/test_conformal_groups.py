"""Conformal factors and sets of rows in groups: the rule by hand, its special case, and the coverage of new groups."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from properties import examples
from splitpoint.conformal import KEPT_GROUPS, SET_SCORES, Conformity, calibration_scores, conformal_factor, group_factor
from splitpoint.errors import DataError
from splitpoint.groups import Owners


def drawn(groups, rows, seed, dtype=torch.float64):
    """Ratios (groups * rows,) whose size belongs to the group: the worst of them err four times as much as others."""
    generator = torch.Generator().manual_seed(seed)
    size = (0.6 * torch.randn(groups, 1, generator=generator, dtype=dtype)).exp()
    return (size * torch.randn(groups, rows, generator=generator, dtype=dtype).abs()).flatten()


def numbers(groups, rows):
    return torch.arange(groups).repeat_interleave(rows)


@examples(60)
@given(st.integers(1, 200), st.sampled_from([0.5, 0.8, 0.9, 0.95]), st.integers(0, 10_000))
def test_one_row_a_group_is_the_rule_of_single_rows(rows, level, seed):
    ratio = drawn(rows, 1, seed).mul(4).round()  # with ties
    try:
        expected = conformal_factor(ratio, level)
    except DataError:
        with pytest.raises(DataError, match=r"calibration groups \(images, sequences\) of residuals on each side"):
            conformal_factor(ratio, level, owners=Owners.of(torch.arange(rows)))
        return
    assert conformal_factor(ratio, level, owners=Owners.of(torch.randperm(rows))) == expected


def test_one_side_of_rows_whose_groups_have_one_row_each_is_the_rule_of_single_rows():
    ratio, side = drawn(90, 1, 0), torch.arange(90) % 3 == 0
    owners = Owners.of(torch.arange(90)).at(side)
    assert group_factor(ratio[side], 0.9, owners) == conformal_factor(ratio[side], 0.9)


def test_the_factor_by_hand():
    # Three groups of two rows; a factor of 5 leaves (1/2, 0, 0) of them outside, one of 4 leaves (1/2, 1/2, 0).
    ratio, owners = torch.tensor([1.0, 6.0, 2.0, 5.0, 3.0, 4.0]), Owners.of(numbers(3, 2))
    # at level 0.6 the risks at 5 are (0.1, -0.4, -0.4): -0.7 + 0.1 <= 0, and those at 4 (0.1, 0.1, -0.4): -0.2 + 0.1
    # <= 0; those at 3 are (0.1, 0.1, 0.1): 0.3 + 0.1 > 0.
    assert group_factor(ratio, 0.6, owners) == 4
    # at level 0.75 the risks at 5 are (0.25, -0.25, -0.25): -0.25 + 0.25 <= 0, and those at 4 0.25 + 0.25 > 0
    assert group_factor(ratio, 0.75, owners) == 5
    assert group_factor(ratio, 0.76, owners) == 6


def test_new_groups_are_covered_on_average_where_the_rule_of_rows_leaves_too_many_outside():
    level, groups, rows = 0.9, 20, 30
    mine, theirs = [], []
    for seed in range(400):
        ratio, fresh = drawn(groups, rows, seed), drawn(50, rows, seed + 1000)
        mine.append((fresh <= conformal_factor(ratio, level, owners=Owners.of(numbers(groups, rows)))).double().mean())
        theirs.append((fresh <= conformal_factor(ratio, level)).double().mean())
    covered, error = torch.stack(mine).mean(), torch.stack(mine).std() / 20
    assert level - 2 * error < covered < level + 0.03
    assert torch.stack(theirs).mean() < covered - 2 * error


def test_groups_count_alike_however_many_rows_they_have():
    few, many = drawn(40, 5, 1), 100 + drawn(2, 300, 2)
    groups = torch.cat([numbers(40, 5), 40 + numbers(2, 300)])
    factor = conformal_factor(torch.cat([few, many]), 0.9, owners=Owners.of(groups))
    assert factor < 100  # two groups of 42 are less than a tenth
    assert conformal_factor(torch.cat([few, many]), 0.9) > 100


def test_too_few_groups_are_an_error_however_many_rows_they_have():
    with pytest.raises(DataError, match=r"Expected at least 19 calibration groups .* at level 0.95, but got 18; give"):
        conformal_factor(drawn(18, 50, 0), 0.95, owners=Owners.of(numbers(18, 50)))


def probabilities(groups, rows, seed):
    """Probabilities of rows and labels; of every third group half the labels are drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(groups * rows, 5, generator=generator, dtype=torch.float64)).softmax(1)
    label = torch.multinomial(probs, 1, generator=generator)[:, 0]
    strange = torch.rand(len(label), generator=generator) < 0.5 * (numbers(groups, rows) % 3 == seed % 3)
    return probs, torch.where(strange, torch.randint(5, label.shape, generator=generator), label)


@pytest.mark.parametrize("score", SET_SCORES)
def test_sets_of_single_rows_are_those_of_groups_of_one_row(score):
    probs, label = probabilities(60, 1, 0)
    one, other = (calibration_scores(probs, label, groups) for groups in (None, torch.arange(60)))
    torch.testing.assert_close(one, other)
    assert torch.equal(Conformity(one).sets(probs, 0.9, score), Conformity(other).sets(probs, 0.9, score))


def test_sets_hold_the_labels_of_new_groups():
    level, found = 0.8, []
    for seed in range(60):
        scores = calibration_scores(*probabilities(30, 20, seed), numbers(30, 20))
        assert scores.shape == (3, 30)
        probs, label = probabilities(40, 20, seed + 500)
        found.append(Conformity(scores).sets(probs, level).gather(1, label[:, None]).double().mean())
    assert level - 0.005 < torch.stack(found).mean() < level + 0.05


def test_of_many_groups_some_scores_are_kept():
    probs, label = probabilities(300, 2, 0)
    assert calibration_scores(probs, label, numbers(300, 2)).shape == (3, KEPT_GROUPS)
    assert not Conformity(calibration_scores(probs[:36], label[:36], numbers(18, 2))).enough
