"""Which modules of a network are views: by what adds up to its output."""

import torch
from torch import nn

from splitpoint.batches import Batch
from splitpoint.networks.views import WHOLE, Views, find_views

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


class Fused(nn.Module):
    """Branches in a dictionary, put together by a function."""

    def __init__(self, fuse, classes=4):
        super().__init__()
        self.fuse = fuse
        deep = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, classes))
        self.parts = nn.ModuleDict({"deep": deep, "flat": nn.Linear(3, classes)})

    def forward(self, x):
        return self.fuse([part(x) for part in self.parts.values()])


def found(network, key=None):
    return find_views(network.eval(), Batch((X,), {}, None), key)


def test_the_outermost_modules_that_add_up_to_the_output_are_views():
    names = ("parts.deep", "parts.flat")
    for fuse in (sum, lambda own: sum(own) / 2, lambda own: torch.stack(own).mean(0)):
        assert found(Fused(fuse)) == names
    assert found(Fused(lambda own: {"loss": own[0].sum(), "answer": sum(own)}), "answer") == names


def test_a_network_that_fuses_otherwise_or_has_one_branch_is_one_view():
    assert found(Fused(lambda own: own[0] * own[1])) == WHOLE
    assert found(Fused(lambda own: own[0])) == WHOLE
    assert found(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))) == WHOLE


def test_outputs_of_views_lie_side_by_side():
    network = Fused(lambda own: own[0] * own[1])
    both = Views(network, ("parts.flat", "parts.deep"), 1)(X)
    torch.testing.assert_close(both, torch.cat([network.parts["flat"](X), network.parts["deep"](X)], 1))
    assert both.requires_grad
    single = Fused(lambda own: own[0].squeeze(1), classes=1)
    assert Views(single, ("parts.flat", "parts.deep"), 1)(X).shape == (6, 2)
