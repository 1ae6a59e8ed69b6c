"""Checksums against published ones, arrays in npz and idx files, and packages that may be missing."""

import gzip
import hashlib
import importlib
import math

import numpy as np
import pytest

from image_files import idx, write
from splitpoint.datasets import TABLES
from splitpoint.datasets.arrays import (
    array_checksum,
    file_checksum,
    file_matches,
    package,
    read_idx,
    read_npz,
    require_package,
    rows_checksum,
    write_npz,
)
from splitpoint.errors import DataError, SettingsError

# Checksums


def test_a_file_has_the_published_checksums_of_abc(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert file_checksum(path, "md5") == "md5:900150983cd24fb0d6963f7d28e17f72"
    sha = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_checksum(path, "sha256") == sha
    assert file_matches(path, sha)
    assert file_matches(path, "size:3")
    assert not file_matches(path, "size:4")


def test_layout_and_byte_order_of_an_array_do_not_matter_but_values_do():
    array = np.arange(6.0).reshape(2, 3)
    expected = "sha256:" + hashlib.sha256(np.arange(6, dtype="<f8").tobytes()).hexdigest()
    assert array_checksum(array) == expected
    assert array_checksum(np.asfortranarray(array)) == expected
    assert array_checksum(array.astype(">f8")) == expected
    assert array_checksum(array.T) != expected


def test_the_order_of_rows_does_not_matter_but_what_belongs_together_does():
    x, y = np.array([[1.0, 2.0], [1.0, 0.0], [3.0, 4.0]]), np.array([5.0, 6.0, 7.0])
    whole = rows_checksum([x, y])
    assert rows_checksum([x[[2, 0, 1]], y[[2, 0, 1]]]) == whole
    assert rows_checksum([x[[2, 0, 1]], y]) != whole
    assert rows_checksum([x, y + 1e-9]) != whole


# Files of arrays


def test_what_is_written_is_read(tmp_path):
    arrays = {"X": np.arange(6.0).reshape(2, 3), "y": np.arange(2, dtype=np.uint8)}
    write_npz(tmp_path / "a.npz", arrays)
    found = read_npz(TABLES["yacht"], tmp_path / "a.npz", ["y", "X"])
    assert all(np.array_equal(found[key], arrays[key]) and found[key].dtype == arrays[key].dtype for key in arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write_npz(tmp_path / "a.npz", {"X": np.ones(3)})
    before = (tmp_path / "a.npz").read_bytes()

    def fail(file, **_):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space left"):
        write_npz(tmp_path / "a.npz", {"X": np.zeros(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert (tmp_path / "a.npz").read_bytes() == before


def test_a_plain_array_is_no_npz(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(DataError, match=r"to hold the arrays of yacht, but they cannot be read; get it again with"):
        read_npz(TABLES["yacht"], tmp_path / "a.npy", ["X"])


def test_idx_of_labels_alone(tmp_path):
    path = write(tmp_path / "a", idx(np.arange(3, dtype=np.uint8)))
    assert read_idx(path).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(b"\0\0\x0d\1\0\0\0\2ab"),
        gzip.compress(idx(np.zeros(4, np.uint8)))[:-9],
    ],
    ids=["empty", "no gzip", "empty gzip", "other type", "cut short"],
)
def test_what_is_no_idx_file_is_told(tmp_path, data):
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"Expected a.gz to be an idx file of bytes, gzipped or not"):
        read_idx(tmp_path / "a.gz")


# Packages


def test_a_package_that_is_there_is_imported():
    assert package("math", "counts", "data") is math


def test_a_missing_package_is_named_with_its_purpose_and_the_cure():
    message = (
        r"Expected the package no_such_thing, which reads tea leaves, but .*: pip install '.\[tea\]' in a checkout$"
    )
    with pytest.raises(SettingsError, match=message):
        package("no_such_thing.inner", "reads tea leaves", "tea")


@pytest.mark.parametrize(("name", "needed"), [("energy", "openpyxl"), ("power", "openpyxl"), ("concrete", "xlrd")])
def test_a_missing_package_is_named_with_the_cure(name, needed, monkeypatch):
    require_package(TABLES[name].reader)

    def missing(wanted, *_):
        raise ModuleNotFoundError(f"No module named {wanted!r}", name=wanted)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SettingsError, match=rf"package {needed}.*pip install '.\[data\]' in a checkout"):
        require_package(TABLES[name].reader)
    require_package(TABLES["yacht"].reader)
