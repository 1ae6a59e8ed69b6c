import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitpoint.datasets.blocks import blocks, runs, split_blocks
from splitpoint.errors import DataError, SettingsError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_blocks_are_consecutive_and_the_last_may_be_smaller():
    assert blocks(7, 3).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert blocks(0, 3).tolist() == []
    for count, size in ((-1, 3), (3, 0)):
        with pytest.raises(SettingsError, match=f"count of 0 or more and a size of at least 1, but got {count} and"):
            blocks(count, size)


def test_a_run_ends_where_a_number_is_left_out():
    assert runs(torch.tensor([0, 1, 3, 4, 5, 8])).tolist() == [0, 0, 1, 1, 1, 2]
    assert runs(torch.tensor([], dtype=torch.int64)).tolist() == []


@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=40),
    weights=st.lists(st.integers(1, 10), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)
def test_no_group_is_divided_and_nothing_is_lost(sizes, weights, seed):
    groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    shares = [weight / sum(weights) for weight in weights]
    parts = split_blocks(groups, shares, generator(seed))
    assert torch.cat(parts).sort().values.tolist() == list(range(len(groups)))
    owners = [set(groups[part].tolist()) for part in parts]
    assert all(owners)
    assert sum(map(len, owners)) == len(sizes)
    assert all(torch.equal(part, part.sort().values) for part in parts)


def test_parts_are_as_large_as_their_shares_say():
    groups = blocks(1000, 7)
    for seed in range(5):
        parts = split_blocks(groups, (0.8, 0.15, 0.05), generator(seed))
        ends = torch.tensor([len(part) for part in parts]).cumsum(0)
        assert ((ends - torch.tensor([800, 950, 1000])).abs() <= 3.5).all()


def test_the_generator_alone_decides():
    groups = blocks(60, 3)

    def held_out(seed):
        return split_blocks(groups, (0.7, 0.3), generator(seed))[1].tolist()

    before = torch.get_rng_state()
    assert held_out(1) == held_out(1) != held_out(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_part_has_a_group_however_small_its_share():
    parts = split_blocks(torch.tensor([5, 5, 5, 5, 9, 7]), (0.98, 0.01, 0.01), generator())
    assert all(len(part) for part in parts)


def test_shares_and_groups_that_cannot_be_are_refused():
    groups = blocks(6, 2)
    for shares in ([], [0.5, 0.4], [1.2, -0.2], [1.0, 0.0]):
        with pytest.raises(SettingsError, match="Expected shares above 0 that sum to 1, but got"):
            split_blocks(groups, shares, generator())
    with pytest.raises(SettingsError, match=r"Expected groups as one row of whole numbers, but got torch.float32"):
        split_blocks(groups.float(), [1.0], generator())
    with pytest.raises(DataError, match="a group for each of 4 parts, but 6 images are of 3 groups; images of one"):
        split_blocks(groups, [0.25] * 4, generator())
