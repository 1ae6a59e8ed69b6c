"""Groups of rows: their numbers, their folds, and the parts that are held back."""

import numpy as np
import pytest
import torch

from splitpoint.errors import DataError
from splitpoint.groups import Owners, check_count, group_ids, random_folds, random_part


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


SIZES = (40, 3, 3, 3, 3, 8, 8, 8, 8, 16)
GROUPS = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))[
    torch.randperm(sum(SIZES), generator=generator(1))
]


@pytest.mark.parametrize(
    "given", [[7, 7, -2, 5], torch.tensor([7, 7, -2, 5]), np.array(["c", "c", "a", "b"]), [7.5, 7.5, 0.5, 1.0]]
)
def test_groups_are_numbered_in_the_order_of_their_names(given):
    assert group_ids(given).tolist() == [2, 2, 0, 1]


def test_groups_that_tell_nothing_are_refused():
    with pytest.raises(DataError, match=r"Expected groups as one number or name for each row, \(N,\), but got shape"):
        group_ids(torch.zeros(3, 1))
    with pytest.raises(DataError, match="Expected a group for every row, but got NaN; give rows without one"):
        group_ids([1.0, float("nan")])
    with pytest.raises(DataError, match="Expected groups that are all numbers or all names, but got both"):
        group_ids(np.array([1, "a"], dtype=object))
    with pytest.raises(DataError, match="for each row of the train data, but got 2 for at least 3 rows; give as many"):
        check_count(torch.zeros(2), 3, "train", more=True)


def test_folds_of_ungrouped_rows_differ_by_one_row_at_most():
    counts = random_folds(13, 5, generator()).bincount()
    assert sorted(counts.tolist()) == [2, 2, 3, 3, 3]


def test_no_fold_divides_a_group_and_small_groups_make_up_for_large_ones():
    fold = random_folds(len(GROUPS), 3, generator(), GROUPS)
    assert all(len(fold[group == GROUPS].unique()) == 1 for group in range(len(SIZES)))
    assert sorted(fold.bincount().tolist()) == [30, 30, 40]  # 40; 16 + 8 + 3 + 3; 8 + 8 + 8 + 3 + 3
    drawn = [random_folds(10, 5, generator(seed), torch.arange(10)) for seed in (0, 1)]
    assert not torch.equal(*drawn)
    assert all(own.bincount().tolist() == [2] * 5 for own in drawn)


def test_whole_groups_are_held_back():
    mask = random_part(len(GROUPS), 30, generator(), GROUPS)
    assert 0 < int(mask.sum()) <= 30
    assert not set(GROUPS[mask].tolist()) & set(GROUPS[~mask].tolist())
    assert int(random_part(100, 30, generator()).sum()) == 30


def test_one_group_is_held_back_where_none_is_small_enough_and_none_where_there_is_one():
    groups = torch.tensor([0] * 8 + [1] * 7)
    assert random_part(15, 2, generator(), groups).tolist() == [False] * 8 + [True] * 7
    assert not random_part(8, 2, generator(), groups[:8]).any()
    assert not random_part(15, 0, generator(), groups).any()


def test_every_group_counts_one():
    owners = Owners.of(GROUPS)
    sums = torch.zeros(len(SIZES), dtype=torch.float64).index_add(0, GROUPS, owners.shares)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert torch.equal(owners.at(GROUPS == 3).shares, torch.full((3,), 1 / 3, dtype=torch.float64))
