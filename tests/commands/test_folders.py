"""Folders of images: classes by sub-folder, pixels in [0, 1], sizes that agree or are made to."""

import numpy as np
import pytest

from splitpoint.commands.folders import CLASS, FILE, IMAGE, ImageFolder, height_and_width
from splitpoint.errors import DataError, SettingsError

pillow = pytest.importorskip("PIL.Image")


def put(folder, name, pixels):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow.fromarray(pixels).save(path)
    return path


def colour(value, height=4, width=6):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0], pixels[0, 0, 1] = value, 255
    return pixels


@pytest.fixture
def folder(tmp_path):
    for name, value in (("dog/2.png", 51), ("cat/b.png", 102), ("cat/a.png", 0)):
        put(tmp_path / "images", name, colour(value))
    return tmp_path / "images"


def test_images_are_in_order_of_class_and_name_and_between_0_and_1(folder):
    images = ImageFolder(folder)
    assert images.names == (IMAGE, CLASS, FILE)
    (part,) = images.parts(images.names, 10)
    assert part.labels(CLASS) == ["cat", "cat", "dog"]
    assert part.copied(FILE) == ["cat/a.png", "cat/b.png", "dog/2.png"]
    pixels = part.numbers(IMAGE)
    assert (pixels.shape, pixels.dtype) == ((3, 3, 4, 6), np.float32)
    assert pixels[:, 0, 1, 1].tolist() == pytest.approx([0, 0.4, 0.2])
    assert pixels[0, 1, 0, 0] == 1


def test_images_without_sub_folders_have_no_class(tmp_path):
    put(tmp_path, "one.png", colour(1))
    assert ImageFolder(tmp_path).names == (IMAGE, FILE)
    put(tmp_path, "in/two.png", colour(1))
    assert ImageFolder(tmp_path).names == (IMAGE, FILE)


def test_grey_images_have_one_channel_and_serve_as_colour_but_not_the_reverse(tmp_path, folder):
    put(tmp_path / "grey", "a.png", np.full((4, 6), 51, np.uint8))
    grey = ImageFolder(tmp_path / "grey")
    assert grey.pixels(0).shape == (1, 4, 6)
    assert np.allclose(ImageFolder(tmp_path / "grey", channels=3).pixels(0), 0.2)
    with pytest.raises(
        DataError, match=r"Expected grey images of 8 bits, as the first one, but .*a.png is of mode RGB"
    ):
        ImageFolder(folder, channels=1).pixels(0)


def test_sizes_agree_or_are_made_to(folder):
    put(folder, "dog/3.png", colour(1, height=5))
    (part,) = ImageFolder(folder).parts([IMAGE], 10)
    with pytest.raises(DataError, match=r"one size, 4 x 6, but .*3.png has 5 x 6; .*--size HxW"):
        part.numbers(IMAGE)
    (part,) = ImageFolder(folder, (2, 3)).parts([IMAGE], 10)
    assert part.numbers(IMAGE).shape == (4, 3, 2, 3)


def test_sixteen_bits_are_refused_rather_than_cut_off(tmp_path):
    put(tmp_path, "a.png", np.full((4, 6), 3000, np.uint16))
    with pytest.raises(DataError, match=r"images of 8 bits, but .*a.png is of mode I;16"):
        ImageFolder(tmp_path).pixels(0)


def test_damaged_images_are_named(folder):
    random = np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8)
    path = put(folder, "cat/c.png", random)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"Expected a whole image, but .*c.png cannot be decoded"):
        ImageFolder(folder).pixels(2)
    path.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"Expected an image, but .*c.png cannot be read"):
        ImageFolder(folder).pixels(2)


def test_a_folder_without_images_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="Expected PNG or JPEG files below"):
        ImageFolder(tmp_path)


@pytest.mark.parametrize("text", ["", "12", "12x", "0x4", "axb", "1x2x3"])
def test_sizes_are_height_times_width(text):
    with pytest.raises(SettingsError, match="Expected a size such as 224x224"):
        height_and_width(text)
