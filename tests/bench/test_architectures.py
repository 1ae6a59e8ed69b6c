"""Architectures of image classifiers: sizes as published, and blocks as their definitions say."""

import pytest
import torch

from splitpoint.bench.architectures import Normalise, cifar_resnet, lenet, resnet18, vgg16, wide_resnet
from splitpoint.errors import SettingsError

COLOUR, GREY = (3, 32, 32), (1, 28, 28)


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda: lenet(10, GREY), 61_706),
        (lambda: lenet(10, COLOUR), 62_006),
        (lambda: vgg16(10, COLOUR), 14_710_464 + 2 * 4_224 + 5_130),
        (lambda: wide_resnet(10, COLOUR), 36_479_194),
        (lambda: wide_resnet(10, COLOUR, depth=16, width=4), 2_748_890),
        (lambda: resnet18(10, COLOUR), 11_173_962),
        (lambda: resnet18(1000, (3, 224, 224)), 11_689_512),
        (lambda: cifar_resnet(20), 269_722),
        (lambda: cifar_resnet(32), 464_154),
    ],
)
def test_parameters_are_as_many_as_published(build, count):
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in build().parameters()) == count


def test_images_are_normalised_by_channel():
    normalise = Normalise((0.5, 0.25, 0.0), (0.5, 0.25, 1.0))
    images = torch.tensor([1.0, 0.5, 0.25]).reshape(1, 3, 1, 1).expand(2, 3, 4, 4)
    assert torch.equal(normalise(images), torch.tensor([1.0, 1.0, 0.25]).reshape(1, 3, 1, 1).expand(2, 3, 4, 4))


def test_what_halves_an_image_keeps_its_even_pixels():
    """A published block against the definition written out."""
    network = cifar_resnet(8).eval()
    block = network.get_submodule("layer2.0")
    maps = torch.randn(2, 16, 8, 8)
    branch = block.bn2(block.conv2(block.bn1(block.conv1(maps)).relu()))
    kept = torch.cat([torch.zeros(2, 8, 4, 4), maps[:, :, ::2, ::2], torch.zeros(2, 8, 4, 4)], 1)
    assert torch.allclose(block(maps), (branch + kept).relu())


def test_small_networks_of_any_side():
    for side in (12, 17, 40, 96):
        for build in (vgg16, wide_resnet, resnet18):
            small = {vgg16: {"width": 0.05}, wide_resnet: {"depth": 10, "width": 1}, resnet18: {"width": 2}}[build]
            assert build(2, (3, side, side + 3), **small).eval()(torch.rand(1, 3, side, side + 3)).shape == (1, 2)
        assert lenet(2, (1, side, side)).eval()(torch.rand(1, 1, side, side)).shape == (1, 2)


@pytest.mark.parametrize(
    "build",
    [
        lambda: lenet(1, GREY),
        lambda: lenet(10, (1, 8, 8)),
        lambda: lenet(10, (28, 28)),
        lambda: vgg16(10, (4, 32, 32)),
        lambda: vgg16(10, COLOUR, width=0),
        lambda: wide_resnet(10, COLOUR, depth=12),
        lambda: wide_resnet(10, COLOUR, width=0),
        lambda: resnet18(10, COLOUR, width=0),
        lambda: cifar_resnet(21),
    ],
)
def test_what_cannot_be_built(build):
    with pytest.raises(SettingsError, match="Expected"):
        build()
