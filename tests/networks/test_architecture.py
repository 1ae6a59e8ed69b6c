"""Architectures: shapes of outputs and targets, and the units that networks learn in."""

import numpy as np
import pytest
import torch
from torch import nn

from splitpoint.batches import Batch
from splitpoint.errors import DataError, ShapeError
from splitpoint.networks.architecture import Architecture
from splitpoint.networks.trainer import Units
from splitpoint.tasks import Classification, Regression


def architecture(network, *shape, squeezable=2):
    return Architecture.of(network, Batch((torch.randn(shape),), {}, None), None, squeezable)


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.first(x).relu()).squeeze(-1)


def test_places_and_shape_of_a_plain_network():
    found = architecture(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 5, 3)
    assert (found.last, found.layers, found.outputs, found.tail, found.direct) == ("2", ("0", "2"), 2, (2,), True)


def test_what_follows_the_last_layer_is_seen():
    assert architecture(Squeezed(), 5, 3).direct
    assert not architecture(nn.Sequential(nn.Linear(3, 2), nn.Softplus()), 5, 3).direct


def test_outputs_of_widened_networks_keep_channels_of_one_part_together():
    found = architecture(nn.Sequential(nn.Linear(3, 2)), 5, 3)
    raw = torch.arange(12.0).reshape(2, 6)
    assert found.canonical(raw, 3).unflatten(1, (-1, 2))[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ShapeError, match="every channel"):
        found.canonical(torch.zeros(2, 5), 3)


CASES = {
    "vector": (nn.Sequential(nn.Linear(3, 2)), (5, 3), (5, 6), (5, 2)),
    "squeezed": (Squeezed(), (5, 3), (5, 3), (5,)),
    "map": (nn.Sequential(nn.Conv2d(3, 2, 1)), (5, 3, 4, 6), (5, 6, 4, 6), (5, 2, 4, 6)),
    "sequence": (nn.Sequential(nn.Linear(3, 2)), (5, 7, 3), (5, 7, 6), (5, 7, 2)),
}


@pytest.mark.parametrize(("network", "inputs", "raw", "plain"), CASES.values(), ids=CASES.keys())
def test_the_plain_shape_comes_back(network, inputs, raw, plain):
    found = architecture(network, *inputs)
    assert found.like(torch.zeros(raw), 5, 3).shape == plain
    target = torch.arange(float(np.prod(plain))).reshape(plain)
    canonical = found.targets(Regression(), target)
    assert canonical.shape[:2] == (5, found.outputs)
    assert torch.equal(found.layout.restore(canonical, found.like(torch.zeros(raw), 5, 3)), target)


def test_targets_that_make_no_sense_are_refused():
    found = architecture(nn.Sequential(nn.Linear(3, 2)), 5, 3)
    with pytest.raises(DataError, match="finite targets"):
        found.targets(Regression(), torch.tensor([[1.0, torch.inf]]))
    with pytest.raises(ShapeError, match="shape of the model's output"):
        found.targets(Regression(), torch.zeros(5, 3))
    assert found.targets(Classification(ignore_index=7), torch.tensor([0, 1, 7])).tolist() == [0, 1, -100]
    with pytest.raises(DataError, match="labels from 0 to 1"):
        found.targets(Classification(), torch.tensor([0, 2]))


def test_units_are_numpys_moments_in_any_batches():
    values = torch.randn(100, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 1e-3]) + 1000
    values[::9, 0] = torch.nan
    units = Units.of(values.split([30, 1, 69]))
    np.testing.assert_allclose(units.center, np.nanmean(values.double().numpy(), 0), rtol=1e-6)
    np.testing.assert_allclose(units.spread, np.nanstd(values.double().numpy(), 0), rtol=1e-4)
    standard = units.standard(values)[:, 0]
    assert standard[~standard.isnan()].std(correction=0).item() == pytest.approx(1, rel=1e-4)


def test_constant_targets_have_deviation_one_and_missing_ones_are_refused():
    assert Units.of([torch.full((5, 1), 7.0)]).spread.item() == 1
    with pytest.raises(DataError, match="at least two targets"):
        Units.of([torch.tensor([[1.0, torch.nan], [2.0, 3.0]])])
