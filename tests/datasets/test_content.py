import gzip
from dataclasses import replace

import numpy as np
import pytest

from splitpoint.datasets import checksums, content
from splitpoint.datasets.folders import locate
from splitpoint.datasets.registry import SETS, Other
from splitpoint.errors import DataError


@pytest.mark.parametrize("name", SETS)
def test_real_sets_are_whole(name):
    path = locate(*SETS[name].paths)
    if path is None:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {' or '.join(SETS[name].paths)}")
    assert content.verify(name, SETS[name], path) is False


def test_a_file_that_is_missing_or_changed_is_named(tmp_path):
    entry = replace(SETS["cifar100"], content={"train.bin": "size:3", "test.bin": "size:2"})
    (tmp_path / "train.bin").write_bytes(b"abc")
    with pytest.raises(DataError, match=r"cifar100 to have a file test.bin, but .* has none; get it again with"):
        content.verify("cifar100", entry, tmp_path)
    (tmp_path / "test.bin").write_bytes(b"abc")
    with pytest.raises(DataError, match=r"test.bin to have size:2, but it has not; get it again with: splitpoint data"):
        content.verify("cifar100", entry, tmp_path)
    (tmp_path / "test.bin").write_bytes(b"ab")
    assert content.verify("cifar100", entry, tmp_path) is False


def test_an_array_that_changed_is_named(tmp_path):
    entry = replace(SETS["mnist"], content={"x_train": checksums.of_array(np.ones(3, np.uint8))})
    np.savez(tmp_path / "mnist.npz", x_train=np.ones(3, np.uint8))
    assert content.verify("mnist", entry, tmp_path / "mnist.npz") is False
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match="Expected the values of mnist, but its array x_train has others"):
        content.verify("mnist", entry, tmp_path / "mnist.npz")
    np.savez(tmp_path / "mnist.npz", other=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match="to hold the arrays of mnist, but they cannot be read"):
        content.verify("mnist", entry, tmp_path / "mnist.npz")


def test_files_are_counted_where_nobody_published_a_checksum(tmp_path):
    entry = replace(SETS["imagenet_o"], content={"n*/*.JPEG": "files:2"})
    (tmp_path / "n00000001").mkdir()
    for name in ("a.JPEG", "b.txt", "._a.JPEG"):
        (tmp_path / "n00000001" / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"Expected imagenet_o to have 2 files n\*/\*.JPEG, but .* has 1; get it again"):
        content.verify("imagenet_o", entry, tmp_path)
    (tmp_path / "n00000001" / "b.JPEG").write_bytes(b"")
    assert content.verify("imagenet_o", entry, tmp_path) is False


def test_another_form_is_compared_with_its_own_checksums(tmp_path):
    arrays = {"x_test": np.ones((2, 3), np.uint8), "y_test": np.zeros(2, np.uint8)}
    sums = {key: checksums.of_array(value) for key, value in arrays.items()}
    entry = replace(SETS["notmnist"], others={"notmnist.npz": Other(sums)})
    np.savez(tmp_path / "notmnist.npz", **arrays)
    assert content.verify("notmnist", entry, tmp_path / "notmnist.npz") is False
    np.savez(tmp_path / "notmnist.npz", **arrays | {"y_test": np.ones(2, np.uint8)})
    with pytest.raises(DataError, match="its array y_test has others"):
        content.verify("notmnist", entry, tmp_path / "notmnist.npz")


def test_idx_files_are_compared_as_arrays_whether_they_are_zipped_or_not(tmp_path):
    arrays = {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        for key, kind in (("x", "images-idx3"), ("y", "labels-idx1")):
            values = np.arange(4, dtype=np.uint8)
            data = b"\0\0\x08\1\0\0\0\4" + values.tobytes()
            zipped = key == "x"
            name = f"{stem}-{kind}-ubyte{'.gz' if zipped else ''}"
            (tmp_path / name).write_bytes(gzip.compress(data) if zipped else data)
            arrays[f"{key}_{part}"] = values
    sums = {key: checksums.of_array(value) for key, value in arrays.items()}
    assert content.verify("mnist", replace(SETS["mnist"], content=sums), tmp_path) is False
    with pytest.raises(DataError, match="Expected the values of mnist, but its array x_train has others"):
        content.verify("mnist", SETS["mnist"], tmp_path)
