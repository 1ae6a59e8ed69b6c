from dataclasses import replace

import numpy as np
import pytest

from splitpoint.datasets import checksums, content
from splitpoint.datasets.folders import locate
from splitpoint.datasets.registry import SETS
from splitpoint.errors import DataError


@pytest.mark.parametrize("name", SETS)
def test_real_sets_are_whole(name):
    path = locate(SETS[name].path)
    if path is None:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {SETS[name].path}")
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
