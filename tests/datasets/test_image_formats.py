"""Readers of small picture sets, on few pictures in the true formats."""

import io
import os
import pickle
import pickletools
import sys

import numpy as np
import pytest
import scipy.io
import torch

from image_files import cifar_batch, cifar_records, idx, labels_of, mnist, pictures, write
from splitpoint.datasets import image_formats
from splitpoint.errors import DataError, SettingsError

CIFAR = (3, 32, 32)


def cifar10_parts():
    """Pictures and labels of six batches, the last one the test batch."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {name: (pictures(4, CIFAR, seed), labels_of(4, 10) + seed) for seed, name in enumerate(names)}


def assert_holds(images, expected, numbers, classes):
    assert (images.classes, images.shape, len(images)) == (classes, expected.shape[1:], len(expected))
    assert images.labels.tolist() == numbers.tolist()
    assert np.array_equal(images.pixels(range(len(expected))).numpy(), expected)


def assert_is_cifar10(read, folder):
    parts = cifar10_parts()
    train = [parts[name] for name in list(parts)[:5]]
    joined = [np.concatenate(arrays) for arrays in zip(*train, strict=True)]
    assert_holds(read("cifar10", folder, "train"), *joined, 10)
    assert_holds(read("cifar10", folder, "test"), *parts["test_batch"], 10)


def test_cifar10_records_are_mapped_and_not_read(tmp_path):
    for name, (images, numbers) in cifar10_parts().items():
        cifar_records(tmp_path / f"{name}.bin", images, numbers)
    assert_is_cifar10(image_formats.cifar10_records, tmp_path)
    for part in image_formats.cifar10_records("cifar10", tmp_path, "train").parts:
        assert isinstance(part.stored, np.memmap)
        assert not part.stored.flags.owndata


def test_cifar10_batches(tmp_path):
    for name, (images, numbers) in cifar10_parts().items():
        cifar_batch(tmp_path / name, images, numbers)
    assert_is_cifar10(image_formats.cifar10_batches, tmp_path)


def test_the_batches_written_here_are_those_of_python_2(tmp_path):
    data = cifar_batch(tmp_path / "a", pictures(1, CIFAR), labels_of(1, 10)).read_bytes()
    commands = {(command.name, argument) for command, argument, _ in pickletools.genops(data) if argument is not None}
    assert ("GLOBAL", "numpy.core.multiarray _reconstruct") in commands
    assert not {"SHORT_BINBYTES", "BINUNICODE"} & {name for name, _ in commands}


def test_cifar100_has_fine_labels_in_both_forms(tmp_path):
    for seed, part in enumerate(("train", "test")):
        images, fine = pictures(3, CIFAR, seed), np.array([99, 0, 42]) - seed * np.array([1, 0, 1])
        cifar_records(tmp_path / "bin" / f"{part}.bin", images, fine // 5, fine)
        cifar_batch(tmp_path / "py" / part, images, fine, b"fine_labels")
        assert_holds(image_formats.cifar100_records("cifar100", tmp_path / "bin", part), images, fine, 100)
        assert_holds(image_formats.cifar100_batches("cifar100", tmp_path / "py", part), images, fine, 100)
    assert isinstance(image_formats.cifar100_records("cifar100", tmp_path / "bin", "train").stored, np.memmap)


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
        image_formats.cifar10_batches("cifar10", tmp_path, "test")
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
        image_formats.cifar10_batches("cifar10", tmp_path, "test")


def test_a_pickle_that_is_cut_off_is_refused(tmp_path):
    path = cifar_batch(tmp_path / "test_batch", pictures(2, CIFAR), labels_of(2, 10))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="to hold a pickled batch of CIFAR, but it cannot be read"):
        image_formats.cifar10_batches("cifar10", tmp_path, "test")


def test_records_that_are_cut_off_missing_or_of_another_set_are_refused(tmp_path):
    path = cifar_records(tmp_path / "test_batch.bin", pictures(2, CIFAR), labels_of(2, 10))
    whole = path.read_bytes()
    for data, size in ((whole[:-1], "6,145"), (b"", "0")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"to hold records of 3073 bytes, but it has {size} bytes; get it again"):
            image_formats.cifar10_records("cifar10", tmp_path, "test")
    path.write_bytes(b"\xff" + whole[1:])
    with pytest.raises(DataError, match="Expected labels of cifar10 from 0 to 9, but got 1 to 255"):
        image_formats.cifar10_records("cifar10", tmp_path, "test")
    with pytest.raises(DataError, match=r"Expected cifar10 to have a file data_batch_1.bin, but .* has none; get it"):
        image_formats.cifar10_records("cifar10", tmp_path, "train")


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_zipped_or_not(tmp_path, zipped):
    for stem, part, seed in (("train", "train", 1), ("t10k", "test", 2)):
        images, numbers = pictures(5, (28, 28), seed), labels_of(5, 10)
        mnist(tmp_path, stem, images, numbers, zipped)
        found = image_formats.idx_folder("mnist", tmp_path, part)
        assert_holds(found, images[:, None], numbers, 10)
        assert isinstance(found.stored, np.memmap) is not zipped


@pytest.mark.parametrize("cut", [-1, 3, 6, 0], ids=["cut off", "cut in the first bytes", "cut in the sizes", "empty"])
def test_idx_files_that_are_cut_off_are_refused(tmp_path, cut):
    mnist(tmp_path, "t10k", pictures(2, (28, 28)), labels_of(2, 10), zipped=False)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="Expected t10k-images-idx3-ubyte to be an idx file of bytes"):
        image_formats.idx_folder("mnist", tmp_path, "test")


def test_idx_files_of_another_size_or_missing_are_refused(tmp_path):
    mnist(tmp_path, "t10k", pictures(2, (28, 27)), labels_of(2, 10), zipped=True)
    with pytest.raises(DataError, match=r"to hold pictures \(N, 28, 28\), but they have shape \(2, 28, 27\)"):
        image_formats.idx_folder("mnist", tmp_path, "test")
    mnist(tmp_path, "t10k", pictures(2, (28, 28)), labels_of(3, 10), zipped=True)
    with pytest.raises(DataError, match=r"and labels \(3,\)"):
        image_formats.idx_folder("mnist", tmp_path, "test")
    with pytest.raises(DataError, match=r"Expected mnist to have a file train-images-idx3-ubyte.gz"):
        image_formats.idx_folder("mnist", tmp_path, "train")


def test_idx_of_labels_alone(tmp_path):
    path = write(tmp_path / "a", idx(np.arange(3, dtype=np.uint8)))
    assert image_formats.read_idx(path).tolist() == [0, 1, 2]


def test_npz_of_grey_pictures(tmp_path):
    images, numbers = pictures(4, (28, 28)), labels_of(4, 10)
    np.savez_compressed(tmp_path / "a.npz", x_test=images, y_test=numbers.astype(np.uint8))
    assert_holds(image_formats.grey_npz("notmnist", tmp_path / "a.npz", "test"), images[:, None], numbers, 10)
    with pytest.raises(DataError, match="to hold the arrays of mnist, but they cannot be read"):
        image_formats.grey_npz("mnist", tmp_path / "a.npz", "train")


def test_npz_of_tiny_imagenet(tmp_path):
    images, numbers = pictures(4, (32, 32, 3)), np.array([199, 0, 3, 3])
    path = tmp_path / "tiny.npz"
    np.savez(path, x=images, y=numbers.astype(np.uint8), names=np.array(["a"]))
    found = image_formats.tiny_npz("tiny_imagenet", path, "test")
    assert_holds(found, images.transpose(0, 3, 1, 2), numbers, 200)
    with pytest.raises(DataError, match=r"Expected the folder tiny-imagenet-200 .*: splitpoint data download tiny"):
        image_formats.tiny_npz("tiny_imagenet", path, "train")
    np.savez(path, x=images[:, :30], y=numbers)
    with pytest.raises(DataError, match=r"to hold pictures \(N, 32, 32, 3\), but they have shape"):
        image_formats.tiny_npz("tiny_imagenet", path, "test")


@pytest.mark.parametrize("compressed", [False, True])
def test_svhn_counts_the_digit_0_as_10(tmp_path, compressed):
    images, digits = pictures(5, CIFAR), np.array([1, 10, 9, 10, 2], np.uint8)
    table = {"X": images.transpose(2, 3, 1, 0), "y": digits[:, None]}
    scipy.io.savemat(tmp_path / "test_32x32.mat", table, do_compression=compressed)
    found = image_formats.svhn_mat("svhn", tmp_path, "test")
    assert_holds(found, images, digits % 10, 10)
    assert torch.equal(found.pixels([3]), torch.from_numpy(images[3:4]))


def test_svhn_files_that_are_none_are_refused(tmp_path):
    path = tmp_path / "test_32x32.mat"
    with pytest.raises(DataError, match=r"Expected svhn to have a file test_32x32.mat"):
        image_formats.svhn_mat("svhn", tmp_path, "test")
    scipy.io.savemat(path, {"X": pictures(32, (32, 3, 5)), "y": np.ones((5, 1))}, do_compression=True)
    whole = path.read_bytes()
    for data in (b"", b"no matlab", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(DataError, match="to hold a MATLAB file with X and y, but it cannot be read"):
            image_formats.svhn_mat("svhn", tmp_path, "test")
    scipy.io.savemat(path, {"X": pictures(5, CIFAR), "y": np.ones((5, 1))})
    with pytest.raises(DataError, match=r"to hold pictures \(32, 32, 3, N\), but they have shape \(5, 3, 32, 32\)"):
        image_formats.svhn_mat("svhn", tmp_path, "test")


def test_svhn_without_scipy_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(SettingsError, match=r"Expected the package scipy, .*: pip install '.\[images\]' in a checkout"):
        image_formats.svhn_mat("svhn", tmp_path, "test")
