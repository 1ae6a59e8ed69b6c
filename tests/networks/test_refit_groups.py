"""Copies that leave rows out leave out whole images and whole groups."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.errors import DataError

UNKNOWN = -100.0


class Memory(nn.Module):
    """Answers with the targets of inputs that it has seen, and with -100 for others; the first value is their name."""

    def __init__(self, shape=()):
        super().__init__()
        self.last = nn.Conv2d(1, 1, 1) if shape else nn.Linear(1, 1)
        self.known = {}

    def forward(self, x):
        names = x.flatten(1)[:, 0].tolist()
        told = torch.stack([self.known.get(n, torch.full(x.shape[1:], UNKNOWN)) for n in names])
        return told + 0 * self.last(x)


def remembered(network, data):
    x, y = data
    network.known = dict(zip(x.flatten(1)[:, 0].tolist(), y, strict=True))
    return network


def named(rows, *shape):
    """Inputs with a name each, and their targets."""
    x = torch.arange(rows, dtype=torch.float32).reshape(-1, *[1] * len(shape)).expand(rows, *shape).clone()
    return x, torch.randn(rows, *shape, generator=torch.Generator().manual_seed(0))


def left_out(rows, shape, groups=None, seed=0):
    """The rows that each of the copies did not get."""
    data, asked = named(rows, *shape), []

    def retrain(network, part):
        asked.append(part[0].flatten(1)[:, 0].long())
        return remembered(network, part)

    base = remembered(Memory(shape[1:]), data).eval()
    method = sp.SplitPointRegressor(0.5, layer="last", residuals="refit", retrain=retrain, epochs=1, rows_per_call=4)
    uq = method.fit(base, data, groups=groups, seed=seed, progress=False)
    assert 95 < float(uq.scale) < 105  # of rows that were left out, every one of which is answered with -100
    return [sorted(set(range(rows)) - set(seen.tolist())) for seen in asked]


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
def test_copies_leave_out_whole_images():
    found = left_out(15, (1, 4, 5))
    assert sorted(row for own in found for row in own) == list(range(15))
    assert [len(own) for own in found] == [3] * 5


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
@pytest.mark.parametrize("shape", [(1,), (1, 2, 2)])
def test_copies_leave_out_whole_groups(shape):
    groups = [f"patient {row % 6}" for row in range(18)]
    found = left_out(18, shape, groups)
    assert sorted(row for own in found for row in own) == list(range(18))
    for own in found:
        assert {row for row in range(18) if row % 6 in {o % 6 for o in own}} == set(own)


def test_fewer_groups_than_copies_are_refused():
    with pytest.raises(DataError, match="Expected at least 5 groups to train copies without a part of them, but got 3"):
        left_out(18, (1,), [row % 3 for row in range(18)])


def test_data_that_may_come_in_another_order_are_refused_with_groups():
    x, y = named(12, 1)
    loader = torch.utils.data.DataLoader(list(zip(x, y, strict=True)), batch_size=4)
    method = sp.SplitPointRegressor(0.5, residuals="refit", epochs=1)
    with pytest.raises(DataError, match="Expected arrays or a TensorDataset for residuals='refit' with groups=, but"):
        method.fit(nn.Linear(1, 1), loader, groups=range(12), progress=False)
