"""What is inside a wrapped network."""

import pytest
import torch
from torch import nn

from splitpoint.wrappers import unwrapped


class _FabricModule(nn.Module):
    """As Lightning Fabric wraps a network: what runs, and the network as it was."""

    def __init__(self, network):
        super().__init__()
        self._forward_module = nn.DataParallel(network)
        self._original_module = network


class Own(nn.Module):
    """A wrapper of the user's own, which may do anything to the inputs."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(255 * x)


def compiled(network):
    return torch.compile(network, backend="eager")


@pytest.mark.parametrize(
    "wrap",
    [compiled, nn.DataParallel, _FabricModule, lambda net: compiled(nn.DataParallel(compiled(net)))],
    ids=["compiled", "parallel", "fabric", "nested"],
)
def test_the_network_inside_a_wrapper_is_found(wrap):
    network = nn.Linear(2, 1)
    assert unwrapped(wrap(network)) is network


def test_any_other_network_is_what_it_is():
    for network in (nn.Linear(2, 1), Own(nn.Linear(2, 1)), nn.Sequential(nn.Linear(2, 1))):
        assert unwrapped(network) is network
