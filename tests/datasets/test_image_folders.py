"""Readers of folders of pictures, on few files written by Pillow."""

import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from image_files import imagenet, picture_file, pictures, tiny_imagenet, wnids, write
from splitpoint.datasets import image_folders
from splitpoint.datasets.folders import VARIABLE
from splitpoint.errors import DataError, SettingsError


@pytest.fixture(scope="module")
def imagenet_data(tmp_path_factory):
    """A data folder with ImageNet-1K in it."""
    folder = tmp_path_factory.mktemp("data")
    imagenet(folder / "imagenet")
    return folder


def test_tiny_imagenet_takes_its_classes_from_wnids(tmp_path):
    tiny_imagenet(tmp_path, per_class=2)
    train = image_folders.tiny_folder("tiny_imagenet", tmp_path, "train")
    assert (train.shape, train.classes, train.labels.tolist()) == ((3, 64, 64), 200, [0, 0, 1, 1, 199, 199])
    assert train.pixels([0, 5]).flatten(1).float().mean(1).tolist() == pytest.approx([0, 199], abs=2)


def test_tiny_imagenet_takes_its_test_labels_from_the_annotations_in_their_order(tmp_path):
    tiny_imagenet(tmp_path)
    test = image_folders.tiny_folder("tiny_imagenet", tmp_path, "test")
    assert test.labels.tolist() == [199, 1, 0]
    assert test.pixels([0, 2]).flatten(1).float().mean(1).tolist() == pytest.approx([199, 0], abs=2)


def test_tiny_imagenet_with_wrong_lists_is_refused(tmp_path):
    names = tiny_imagenet(tmp_path)
    write(tmp_path / "val/val_annotations.txt", b"val_0.JPEG\tn99999999\t0\t0\t1\t1\n")
    with pytest.raises(
        DataError, match=r"val_annotations.txt to hold a file name and a wnid of wnids.txt in every line"
    ):
        image_folders.tiny_folder("tiny_imagenet", tmp_path, "test")
    write(tmp_path / "wnids.txt", "\n".join(names[1:]).encode())
    with pytest.raises(DataError, match=r"wnids.txt to hold 200 wnids, but it has 199; get it again with"):
        image_folders.tiny_folder("tiny_imagenet", tmp_path, "train")
    (tmp_path / "wnids.txt").unlink()
    with pytest.raises(DataError, match=r"Expected tiny_imagenet to have a file wnids.txt"):
        image_folders.tiny_folder("tiny_imagenet", tmp_path, "train")


def test_pictures_are_decoded_in_as_many_threads_as_torch_has(tmp_path, monkeypatch):
    tiny_imagenet(tmp_path, per_class=4)
    train = image_folders.tiny_folder("tiny_imagenet", tmp_path, "train")
    expected, seen, decoded = train.pixels(range(12)), set(), image_folders.decoded
    gate = threading.Barrier(3, timeout=30)

    def noting(*given, **rest):
        seen.add(threading.get_ident())
        gate.wait()
        return decoded(*given, **rest)

    monkeypatch.setattr(image_folders, "decoded", noting)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(train.pixels(range(12)), expected)
    assert len(seen) == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_a_picture_of_another_size_or_damaged_is_named(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    names = tiny_imagenet(tmp_path)
    path = tmp_path / f"train/{names[1]}/images/{names[1]}_0.JPEG"
    picture_file(path, pictures(1, (64, 60, 3))[0])
    train = image_folders.tiny_folder("tiny_imagenet", tmp_path, "train")
    train.pixels([0, 2])
    with pytest.raises(
        DataError, match=rf"{names[1]}_0.JPEG to be a picture .* \(it has 60 x 64 pixels, not 64 x 64\)"
    ):
        train.pixels([0, 1])
    for data in (b"", b"no picture", picture_file(path, pictures(1, (64, 64, 3))[0]).read_bytes()[:-500]):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"Expected .*{names[1]}_0.JPEG to be a picture of tiny_imagenet"):
            train[1]


def test_imagenet_numbers_its_classes_by_wnid(imagenet_data):
    for part in ("train", "test"):
        images = image_folders.imagenet("imagenet", imagenet_data / "imagenet", part)
        assert (images.shape, images.classes, images.labels.tolist()) == ((3, 224, 224), 1000, [0, 999])
        x, y = images[1]
        assert (x.shape, int(y)) == ((3, 224, 224), 999)
        assert float(x.mean()) * 255 == pytest.approx(999 % 256, abs=2)


def test_imagenet_with_classes_missing_is_refused_since_its_labels_would_be_wrong(tmp_path):
    picture_file(tmp_path / "val" / "n01440764" / "a.JPEG", pictures(1, (9, 9, 3))[0])
    write(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", b"")
    with pytest.raises(DataError, match=r"to hold the 1,000 class folders .* but it holds 1; sort the pictures into"):
        image_folders.imagenet("imagenet", tmp_path, "test")
    with pytest.raises(DataError, match="but it holds 0"):
        image_folders.imagenet("imagenet", tmp_path, "train")


@pytest.mark.parametrize("sides", [(300, 400), (400, 300), (256, 256), (100, 223), (224, 1000)])
def test_the_shorter_side_becomes_256_and_the_centre_is_cut_out(tmp_path, sides):
    """A picture whose red grows with x and whose green grows with y shows what was cut out."""
    rows, columns = np.mgrid[: sides[0], : sides[1]]
    array = np.stack([255 * columns / sides[1], 255 * rows / sides[0], 0 * rows], -1).astype(np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(array).save(path)
    found = image_folders.decoded(path, (3, 224, 224), crop=True)
    assert (found.shape, found.dtype) == ((3, 224, 224), np.uint8)
    scale = 256 / min(sides)
    for plane, side in zip(found[:2], (sides[1], sides[0]), strict=True):
        kept = 224 / (scale * side)
        assert [plane.min(), plane.max()] == pytest.approx([127.5 * (1 - kept), 127.5 * (1 + kept)], abs=3)


def test_grey_and_palette_files_become_rgb(tmp_path):
    for number, mode in enumerate(("L", "P", "RGBA", "CMYK")):
        path = tmp_path / f"{number}.{'jpg' if mode in ('L', 'CMYK') else 'png'}"
        Image.new(mode, (300, 300)).save(path)
        assert image_folders.decoded(path, (3, 224, 224), crop=True).shape == (3, 224, 224)


def test_imagenet_a_has_labels_among_the_1000_from_folders_or_from_a_file(imagenet_data, tmp_path, monkeypatch):
    names = wnids(1000)
    for label in (999, 6, 500):
        picture_file(tmp_path / "imagenet-a" / names[label] / "0.1_a b _ c_0.9.jpg", pictures(1, (30, 40, 3))[0])
    write(tmp_path / "imagenet-a" / "README.txt", b"")
    monkeypatch.setenv(VARIABLE, f"{tmp_path}:{imagenet_data}")
    images = image_folders.imagenet_a("imagenet_a", tmp_path / "imagenet-a", "test")
    assert (images.classes, images.labels.tolist()) == (1000, [6, 500, 999])
    assert images.pixels([0]).shape == (1, 3, 224, 224)

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match=r"has imagenet/val, imagenet/train or imagenet_wnids.txt; put a file"):
        image_folders.imagenet_a("imagenet_a", tmp_path / "imagenet-a", "test")
    write(tmp_path / "imagenet_wnids.txt", "\n".join(f"{name} a fish" for name in reversed(names)).encode())
    again = image_folders.imagenet_a("imagenet_a", tmp_path / "imagenet-a", "test")
    assert torch.equal(again.labels, images.labels)
    write(tmp_path / "imagenet_wnids.txt", "\n".join(names[1:]).encode())
    with pytest.raises(
        DataError, match=r"imagenet_wnids.txt to have the 1,000 wnids .* but it has 999 different words"
    ):
        image_folders.imagenet_a("imagenet_a", tmp_path / "imagenet-a", "test")


def test_imagenet_a_with_a_strange_class_is_refused(imagenet_data, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(imagenet_data))
    picture_file(tmp_path / "n99999999" / "a.jpg", pictures(1, (30, 40, 3))[0])
    with pytest.raises(DataError, match="but n99999999 is none"):
        image_folders.imagenet_a("imagenet_a", tmp_path, "test")


def test_imagenet_o_needs_no_list_of_classes(tmp_path):
    for name in wnids(2):
        picture_file(tmp_path / name / "fish_0.9.JPEG", pictures(1, (30, 40, 3))[0])
    write(tmp_path / wnids(2)[0] / "._fish_0.9.JPEG", b"hidden")
    images = image_folders.imagenet_o("imagenet_o", tmp_path, "test")
    assert (images.classes, images.labels.tolist()) == (200, [0, 1])


def test_a_folder_without_pictures_is_refused(tmp_path):
    (tmp_path / wnids(1)[0]).mkdir()
    with pytest.raises(
        DataError, match="to hold JPEG or PNG files in folders of classes, but it has none; get it again"
    ):
        image_folders.imagenet_o("imagenet_o", tmp_path, "test")


def test_letters_that_are_broken_are_counted_once(tmp_path):
    expected = pictures(3, (28, 28))
    for letter, array in zip("AJB", expected, strict=True):
        picture_file(tmp_path / letter / "b.png", array)
    write(tmp_path / "A" / "a.png", b"")
    write(tmp_path / "F" / "a.png", b"broken")
    with pytest.warns(UserWarning, match=r"^Left out 2 of 5 files of notmnist, which are no pictures\.$") as warned:
        images = image_folders.letter_folders("notmnist", tmp_path, "test")
    assert len(warned) == 1
    assert images.labels.tolist() == [0, 1, 9]
    assert np.array_equal(images.pixels([0, 1, 2])[:, 0].numpy(), expected[[0, 2, 1]])


def test_letters_that_are_all_broken_are_refused(tmp_path):
    write(tmp_path / "A" / "a.png", b"")
    with pytest.raises(DataError, match="to hold PNG files in folders A to J, but none of its 1 can be decoded"):
        image_folders.letter_folders("notmnist", tmp_path, "test")


@pytest.mark.parametrize("read", [image_folders.tiny_folder, image_folders.letter_folders])
def test_without_pillow_it_says_what_to_install(read, tmp_path, monkeypatch):
    tiny_imagenet(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(
        SettingsError,
        match=r"Expected the package PIL, which decodes pictures \(Pillow\), .*: pip install '.\[images\]' in a",
    ):
        read("tiny_imagenet", tmp_path, "train")
