"""The U-Net: what the paper says of it, shapes, and what cannot be built."""

import pytest
import torch
from torch import nn

from splitpoint.bench.unet import DECODER, UNet
from splitpoint.errors import SettingsError, ShapeError


def test_it_is_that_of_the_paper():
    network = UNet()
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions[:-1]] == [
        width for width in (32, 64, 128, 256, 512, 256, 128, 64, 32) for _ in range(2)
    ]
    assert {layer.kernel_size for layer in convolutions[:-1]} == {(3, 3)}
    assert convolutions[-1].kernel_size == (1, 1)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    assert network(torch.rand(2, 3, 32, 48)).shape == (2, 1, 32, 48)


def test_batch_norm_stands_before_every_activation():
    network = UNet(2, "batch")
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in network.modules()) == 18
    assert [type(layer) for layer in network.down[1]][:3] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]


def test_a_pixel_is_reached_from_its_skip_and_from_below():
    """Without the skips the output is constant on blocks that nearest up-sampling makes; with them it is not."""
    torch.manual_seed(0)
    network = UNet(4)
    found = network(torch.rand(1, 3, 32, 32))
    blocks = found.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    assert (blocks.std(-1) > 0).any()


def test_stages_of_the_decoder_have_names():
    network = UNet(2)
    assert [network.get_submodule(name)[0].out_channels for name in DECODER] == [16, 8, 4, 2]


def test_what_cannot_be_is_refused():
    with pytest.raises(ShapeError, match=r"multiples of 16, but got \(1, 3, 32, 40\)"):
        UNet(2)(torch.rand(1, 3, 32, 40))
    with pytest.raises(SettingsError, match="width >= 1 and norm 'batch' or 'none', but got 0"):
        UNet(0)
