"""Readers of image sets, on few images in the true formats."""

import io
import os
import pickle
import pickletools
import sys
import threading

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from image_files import (
    cifar_batch,
    cifar_records,
    image_file,
    imagenet,
    labels_of,
    mnist,
    noise_images,
    tiny_imagenet,
    wnids,
    write,
)
from splitpoint.datasets import SETS, image_set
from splitpoint.datasets import image_readers as readers
from splitpoint.datasets.entry import VARIABLE
from splitpoint.errors import DataError, SettingsError

CIFAR = (3, 32, 32)


def cifar10_parts():
    """Images and labels of six batches, the last one the test batch."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {name: (noise_images(4, CIFAR, seed), labels_of(4, 10) + seed) for seed, name in enumerate(names)}


def assert_holds(images, expected, numbers, classes):
    assert (images.classes, images.shape, len(images)) == (classes, expected.shape[1:], len(expected))
    assert images.labels.tolist() == numbers.tolist()
    assert np.array_equal(images.pixels(range(len(expected))).numpy(), expected)


def assert_is_cifar10(read, folder):
    parts = cifar10_parts()
    train = [parts[name] for name in list(parts)[:5]]
    joined = [np.concatenate(arrays) for arrays in zip(*train, strict=True)]
    assert_holds(read(SETS["cifar10"], folder, "train"), *joined, 10)
    assert_holds(read(SETS["cifar10"], folder, "test"), *parts["test_batch"], 10)


def test_cifar10_records_are_mapped_and_not_read(tmp_path):
    for name, (images, numbers) in cifar10_parts().items():
        cifar_records(tmp_path / f"{name}.bin", images, numbers)
    assert_is_cifar10(readers.cifar10_records, tmp_path)
    for part in readers.cifar10_records(SETS["cifar10"], tmp_path, "train").parts:
        assert isinstance(part.stored, np.memmap)
        assert not part.stored.flags.owndata


def test_cifar10_batches(tmp_path):
    for name, (images, numbers) in cifar10_parts().items():
        cifar_batch(tmp_path / name, images, numbers)
    assert_is_cifar10(readers.cifar10_batches, tmp_path)


def test_the_batches_written_here_are_those_of_python_2(tmp_path):
    data = cifar_batch(tmp_path / "a", noise_images(1, CIFAR), labels_of(1, 10)).read_bytes()
    commands = {(command.name, argument) for command, argument, _ in pickletools.genops(data) if argument is not None}
    assert ("GLOBAL", "numpy.core.multiarray _reconstruct") in commands
    assert not {"SHORT_BINBYTES", "BINUNICODE"} & {name for name, _ in commands}


def test_cifar100_has_fine_labels_in_both_forms(tmp_path):
    for seed, part in enumerate(("train", "test")):
        images, fine = noise_images(3, CIFAR, seed), np.array([99, 0, 42]) - seed * np.array([1, 0, 1])
        cifar_records(tmp_path / "bin" / f"{part}.bin", images, fine // 5, fine)
        cifar_batch(tmp_path / "py" / part, images, fine, b"fine_labels")
        assert_holds(readers.cifar100_records(SETS["cifar100"], tmp_path / "bin", part), images, fine, 100)
        assert_holds(readers.cifar100_batches(SETS["cifar100"], tmp_path / "py", part), images, fine, 100)
    assert isinstance(readers.cifar100_records(SETS["cifar100"], tmp_path / "bin", "train").stored, np.memmap)


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_runs_code_is_refused_before_it_runs(tmp_path):
    stream = io.BytesIO()
    pickle.dump({b"data": Evil(tmp_path / "evil"), b"labels": [0]}, stream, 2)
    write(tmp_path / "test_batch", stream.getvalue())
    message = (
        r"Expected .*test_batch to hold a pickled batch of CIFAR, but .* asks for posix.mkdir, .*get it again with"
    )
    with pytest.raises(DataError, match=message):
        readers.cifar10_batches(SETS["cifar10"], tmp_path, "test")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": [[1]], b"labels": [0]}),
        pickle.dumps({b"labels": [0]}, 2),
        pickle.dumps({b"data": [list(range(3072))], b"labels": ["cat"]}),
    ],
    ids=["empty", "no pickle", "no dict", "few pixels", "no data", "no numbers"],
)
def test_other_pickles_are_refused(tmp_path, data):
    write(tmp_path / "test_batch", data)
    with pytest.raises(DataError, match=r"Expected .* to hold a pickled batch of CIFAR, but it cannot be read"):
        readers.cifar10_batches(SETS["cifar10"], tmp_path, "test")


def test_a_pickle_that_is_cut_off_is_refused(tmp_path):
    path = cifar_batch(tmp_path / "test_batch", noise_images(2, CIFAR), labels_of(2, 10))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="to hold a pickled batch of CIFAR, but it cannot be read"):
        readers.cifar10_batches(SETS["cifar10"], tmp_path, "test")


def test_records_that_are_cut_off_missing_or_of_another_set_are_refused(tmp_path):
    path = cifar_records(tmp_path / "test_batch.bin", noise_images(2, CIFAR), labels_of(2, 10))
    whole = path.read_bytes()
    for data, size in ((whole[:-1], "6,145"), (b"", "0")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"to hold records of 3073 bytes, but it has {size} bytes; get it again"):
            readers.cifar10_records(SETS["cifar10"], tmp_path, "test")
    path.write_bytes(b"\xff" + whole[1:])
    with pytest.raises(DataError, match="Expected labels of cifar10 from 0 to 9, but got 1 to 255"):
        readers.cifar10_records(SETS["cifar10"], tmp_path, "test")
    with pytest.raises(DataError, match=r"Expected cifar10 to have a file data_batch_1.bin, but .* has none; get it"):
        readers.cifar10_records(SETS["cifar10"], tmp_path, "train")


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_zipped_or_not(tmp_path, zipped):
    for stem, part, seed in (("train", "train", 1), ("t10k", "test", 2)):
        images, numbers = noise_images(5, (28, 28), seed), labels_of(5, 10)
        mnist(tmp_path, stem, images, numbers, zipped)
        found = readers.idx_folder(SETS["mnist"], tmp_path, part)
        assert_holds(found, images[:, None], numbers, 10)
        assert isinstance(found.stored, np.memmap) is not zipped


@pytest.mark.parametrize("cut", [-1, 3, 6, 0], ids=["cut off", "cut in the first bytes", "cut in the sizes", "empty"])
def test_idx_files_that_are_cut_off_are_refused(tmp_path, cut):
    mnist(tmp_path, "t10k", noise_images(2, (28, 28)), labels_of(2, 10), zipped=False)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="Expected t10k-images-idx3-ubyte to be an idx file of bytes"):
        readers.idx_folder(SETS["mnist"], tmp_path, "test")


def test_idx_files_of_another_size_or_missing_are_refused(tmp_path):
    mnist(tmp_path, "t10k", noise_images(2, (28, 27)), labels_of(2, 10), zipped=True)
    with pytest.raises(DataError, match=r"to hold images \(N, 28, 28\), but they have shape \(2, 28, 27\)"):
        readers.idx_folder(SETS["mnist"], tmp_path, "test")
    mnist(tmp_path, "t10k", noise_images(2, (28, 28)), labels_of(3, 10), zipped=True)
    with pytest.raises(DataError, match=r"and labels \(3,\)"):
        readers.idx_folder(SETS["mnist"], tmp_path, "test")
    with pytest.raises(DataError, match=r"Expected mnist to have a file train-images-idx3-ubyte.gz"):
        readers.idx_folder(SETS["mnist"], tmp_path, "train")


def test_npz_of_grey_images(tmp_path):
    images, numbers = noise_images(4, (28, 28)), labels_of(4, 10)
    np.savez_compressed(tmp_path / "a.npz", x_test=images, y_test=numbers.astype(np.uint8))
    assert_holds(readers.grey_npz(SETS["notmnist"], tmp_path / "a.npz", "test"), images[:, None], numbers, 10)
    with pytest.raises(DataError, match="to hold the arrays of mnist, but they cannot be read"):
        readers.grey_npz(SETS["mnist"], tmp_path / "a.npz", "train")


def test_npz_of_tiny_imagenet(tmp_path):
    images, numbers = noise_images(4, (32, 32, 3)), np.array([199, 0, 3, 3])
    path = tmp_path / "tiny.npz"
    np.savez(path, x=images, y=numbers.astype(np.uint8), names=np.array(["a"]))
    found = readers.tiny_npz(SETS["tiny_imagenet"], path, "test")
    assert_holds(found, images.transpose(0, 3, 1, 2), numbers, 200)
    with pytest.raises(DataError, match=r"Expected the folder tiny-imagenet-200 .*: splitpoint data download tiny"):
        readers.tiny_npz(SETS["tiny_imagenet"], path, "train")
    np.savez(path, x=images[:, :30], y=numbers)
    with pytest.raises(DataError, match=r"to hold images \(N, 32, 32, 3\), but they have shape"):
        readers.tiny_npz(SETS["tiny_imagenet"], path, "test")


@pytest.mark.parametrize("compressed", [False, True])
def test_svhn_counts_the_digit_0_as_10(tmp_path, compressed):
    images, digits = noise_images(5, CIFAR), np.array([1, 10, 9, 10, 2], np.uint8)
    table = {"X": images.transpose(2, 3, 1, 0), "y": digits[:, None]}
    scipy.io.savemat(tmp_path / "test_32x32.mat", table, do_compression=compressed)
    found = readers.svhn_mat(SETS["svhn"], tmp_path, "test")
    assert_holds(found, images, digits % 10, 10)
    assert torch.equal(found.pixels([3]), torch.from_numpy(images[3:4]))


def test_svhn_files_that_are_none_are_refused(tmp_path):
    path = tmp_path / "test_32x32.mat"
    with pytest.raises(DataError, match=r"Expected svhn to have a file test_32x32.mat"):
        readers.svhn_mat(SETS["svhn"], tmp_path, "test")
    scipy.io.savemat(path, {"X": noise_images(32, (32, 3, 5)), "y": np.ones((5, 1))}, do_compression=True)
    whole = path.read_bytes()
    for data in (b"", b"no matlab", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(DataError, match="to hold a MATLAB file with X and y, but it cannot be read"):
            readers.svhn_mat(SETS["svhn"], tmp_path, "test")
    scipy.io.savemat(path, {"X": noise_images(5, CIFAR), "y": np.ones((5, 1))})
    with pytest.raises(DataError, match=r"to hold images \(32, 32, 3, N\), but they have shape \(5, 3, 32, 32\)"):
        readers.svhn_mat(SETS["svhn"], tmp_path, "test")


def test_svhn_without_scipy_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(SettingsError, match=r"Expected the package scipy, .*: pip install '.\[images\]' in a checkout"):
        readers.svhn_mat(SETS["svhn"], tmp_path, "test")


# Folders of files


@pytest.fixture(scope="module")
def imagenet_data(tmp_path_factory):
    """A data folder with ImageNet-1K in it."""
    folder = tmp_path_factory.mktemp("data")
    imagenet(folder / "imagenet")
    return folder


def test_tiny_imagenet_takes_its_classes_from_wnids(tmp_path):
    tiny_imagenet(tmp_path, per_class=2)
    train = readers.tiny_folder(SETS["tiny_imagenet"], tmp_path, "train")
    assert (train.shape, train.classes, train.labels.tolist()) == ((3, 64, 64), 200, [0, 0, 1, 1, 199, 199])
    assert train.pixels([0, 5]).flatten(1).float().mean(1).tolist() == pytest.approx([0, 199], abs=2)


def test_tiny_imagenet_takes_its_test_labels_from_the_annotations_in_their_order(tmp_path):
    tiny_imagenet(tmp_path)
    test = readers.tiny_folder(SETS["tiny_imagenet"], tmp_path, "test")
    assert test.labels.tolist() == [199, 1, 0]
    assert test.pixels([0, 2]).flatten(1).float().mean(1).tolist() == pytest.approx([199, 0], abs=2)


def test_tiny_imagenet_with_wrong_lists_is_refused(tmp_path):
    names = tiny_imagenet(tmp_path)
    write(tmp_path / "val/val_annotations.txt", b"val_0.JPEG\tn99999999\t0\t0\t1\t1\n")
    with pytest.raises(
        DataError, match=r"val_annotations.txt to hold a file name and a wnid of wnids.txt in every line"
    ):
        readers.tiny_folder(SETS["tiny_imagenet"], tmp_path, "test")
    write(tmp_path / "wnids.txt", "\n".join(names[1:]).encode())
    with pytest.raises(DataError, match=r"wnids.txt to hold 200 wnids, but it has 199; get it again with"):
        readers.tiny_folder(SETS["tiny_imagenet"], tmp_path, "train")
    (tmp_path / "wnids.txt").unlink()
    with pytest.raises(DataError, match=r"Expected tiny_imagenet to have a file wnids.txt"):
        readers.tiny_folder(SETS["tiny_imagenet"], tmp_path, "train")


def test_images_are_decoded_in_as_many_threads_as_torch_has(tmp_path, monkeypatch):
    tiny_imagenet(tmp_path, per_class=4)
    train = readers.tiny_folder(SETS["tiny_imagenet"], tmp_path, "train")
    expected, seen, decoded = train.pixels(range(12)), set(), image_set.decoded
    gate = threading.Barrier(3, timeout=30)

    def noting(*given, **rest):
        seen.add(threading.get_ident())
        gate.wait()
        return decoded(*given, **rest)

    monkeypatch.setattr(image_set, "decoded", noting)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(train.pixels(range(12)), expected)
    assert len(seen) == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_an_image_of_another_size_or_damaged_is_named(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    names = tiny_imagenet(tmp_path)
    path = tmp_path / f"train/{names[1]}/images/{names[1]}_0.JPEG"
    image_file(path, noise_images(1, (64, 60, 3))[0])
    train = readers.tiny_folder(SETS["tiny_imagenet"], tmp_path, "train")
    train.pixels([0, 2])
    with pytest.raises(DataError, match=rf"{names[1]}_0.JPEG to be an image .* \(it has 60 x 64 pixels, not 64 x 64\)"):
        train.pixels([0, 1])
    for data in (b"", b"no image", image_file(path, noise_images(1, (64, 64, 3))[0]).read_bytes()[:-500]):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"Expected .*{names[1]}_0.JPEG to be an image of tiny_imagenet"):
            train[1]


def test_imagenet_numbers_its_classes_by_wnid(imagenet_data):
    for part in ("train", "test"):
        images = readers.imagenet(SETS["imagenet"], imagenet_data / "imagenet", part)
        assert (images.shape, images.classes, images.labels.tolist()) == ((3, 224, 224), 1000, [0, 999])
        x, y = images[1]
        assert (x.shape, int(y)) == ((3, 224, 224), 999)
        assert float(x.mean()) * 255 == pytest.approx(999 % 256, abs=2)


def test_imagenet_with_classes_missing_is_refused_since_its_labels_would_be_wrong(tmp_path):
    image_file(tmp_path / "val" / "n01440764" / "a.JPEG", noise_images(1, (9, 9, 3))[0])
    write(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", b"")
    with pytest.raises(DataError, match=r"to hold the 1,000 class folders .* but it holds 1; sort the images into"):
        readers.imagenet(SETS["imagenet"], tmp_path, "test")
    with pytest.raises(DataError, match="but it holds 0"):
        readers.imagenet(SETS["imagenet"], tmp_path, "train")


@pytest.mark.parametrize("sides", [(300, 400), (400, 300), (256, 256), (100, 223), (224, 1000)])
def test_the_shorter_side_becomes_256_and_the_centre_is_cut_out(tmp_path, sides):
    """A image whose red grows with x and whose green grows with y shows what was cut out."""
    rows, columns = np.mgrid[: sides[0], : sides[1]]
    array = np.stack([255 * columns / sides[1], 255 * rows / sides[0], 0 * rows], -1).astype(np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(array).save(path)
    found = image_set.decoded(path, (3, 224, 224), crop=True)
    assert (found.shape, found.dtype) == ((3, 224, 224), np.uint8)
    scale = 256 / min(sides)
    for plane, side in zip(found[:2], (sides[1], sides[0]), strict=True):
        kept = 224 / (scale * side)
        assert [plane.min(), plane.max()] == pytest.approx([127.5 * (1 - kept), 127.5 * (1 + kept)], abs=3)


def test_grey_and_palette_files_become_rgb(tmp_path):
    for number, mode in enumerate(("L", "P", "RGBA", "CMYK")):
        path = tmp_path / f"{number}.{'jpg' if mode in ('L', 'CMYK') else 'png'}"
        Image.new(mode, (300, 300)).save(path)
        assert image_set.decoded(path, (3, 224, 224), crop=True).shape == (3, 224, 224)


def test_imagenet_a_has_labels_among_the_1000_from_folders_or_from_a_file(imagenet_data, tmp_path, monkeypatch):
    names = wnids(1000)
    for label in (999, 6, 500):
        image_file(tmp_path / "imagenet-a" / names[label] / "0.1_a b _ c_0.9.jpg", noise_images(1, (30, 40, 3))[0])
    write(tmp_path / "imagenet-a" / "README.txt", b"")
    monkeypatch.setenv(VARIABLE, f"{tmp_path}:{imagenet_data}")
    images = readers.imagenet_a(SETS["imagenet_a"], tmp_path / "imagenet-a", "test")
    assert (images.classes, images.labels.tolist()) == (1000, [6, 500, 999])
    assert images.pixels([0]).shape == (1, 3, 224, 224)

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match=r"has imagenet/val, imagenet/train or imagenet_wnids.txt; put a file"):
        readers.imagenet_a(SETS["imagenet_a"], tmp_path / "imagenet-a", "test")
    write(tmp_path / "imagenet_wnids.txt", "\n".join(f"{name} a fish" for name in reversed(names)).encode())
    again = readers.imagenet_a(SETS["imagenet_a"], tmp_path / "imagenet-a", "test")
    assert torch.equal(again.labels, images.labels)
    write(tmp_path / "imagenet_wnids.txt", "\n".join(names[1:]).encode())
    with pytest.raises(
        DataError, match=r"imagenet_wnids.txt to have the 1,000 wnids .* but it has 999 different words"
    ):
        readers.imagenet_a(SETS["imagenet_a"], tmp_path / "imagenet-a", "test")


def test_imagenet_a_with_a_strange_class_is_refused(imagenet_data, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(imagenet_data))
    image_file(tmp_path / "n99999999" / "a.jpg", noise_images(1, (30, 40, 3))[0])
    with pytest.raises(DataError, match="but n99999999 is none"):
        readers.imagenet_a(SETS["imagenet_a"], tmp_path, "test")


def test_imagenet_o_needs_no_list_of_classes(tmp_path):
    for name in wnids(2):
        image_file(tmp_path / name / "fish_0.9.JPEG", noise_images(1, (30, 40, 3))[0])
    write(tmp_path / wnids(2)[0] / "._fish_0.9.JPEG", b"hidden")
    images = readers.imagenet_o(SETS["imagenet_o"], tmp_path, "test")
    assert (images.classes, images.labels.tolist()) == (200, [0, 1])


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / wnids(1)[0]).mkdir()
    with pytest.raises(
        DataError, match="to hold JPEG or PNG files in folders of classes, but it has none; get it again"
    ):
        readers.imagenet_o(SETS["imagenet_o"], tmp_path, "test")


def test_letters_that_are_broken_are_counted_once(tmp_path):
    expected = noise_images(3, (28, 28))
    for letter, array in zip("AJB", expected, strict=True):
        image_file(tmp_path / letter / "b.png", array)
    write(tmp_path / "A" / "a.png", b"")
    write(tmp_path / "F" / "a.png", b"broken")
    with pytest.warns(UserWarning, match=r"^Left out 2 of 5 files of notmnist, which are no images\.$") as warned:
        images = readers.letter_folders(SETS["notmnist"], tmp_path, "test")
    assert len(warned) == 1
    assert images.labels.tolist() == [0, 1, 9]
    assert np.array_equal(images.pixels([0, 1, 2])[:, 0].numpy(), expected[[0, 2, 1]])


def test_letters_that_are_all_broken_are_refused(tmp_path):
    write(tmp_path / "A" / "a.png", b"")
    with pytest.raises(DataError, match="to hold PNG files in folders A to J, but none of its 1 can be decoded"):
        readers.letter_folders(SETS["notmnist"], tmp_path, "test")


@pytest.mark.parametrize("read", [readers.tiny_folder, readers.letter_folders])
def test_without_pillow_it_says_what_to_install(read, tmp_path, monkeypatch):
    tiny_imagenet(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(
        SettingsError,
        match=r"Expected the package PIL, which decodes images \(Pillow\), .*: pip install '.\[images\]' in a",
    ):
        read(SETS["tiny_imagenet"], tmp_path, "train")
