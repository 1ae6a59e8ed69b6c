import gzip
from dataclasses import replace

import numpy as np
import pytest

from splitpoint.datasets import SETS, inventory
from splitpoint.datasets.arrays import array_checksum
from splitpoint.datasets.entry import VARIABLE, locate
from splitpoint.datasets.inventory import verify
from splitpoint.errors import DataError


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with three files that only look like sets: whole, reordered and damaged, as a stand-in says."""
    (tmp_path / "uci").mkdir()
    for name, size in (("boston", 1200), ("wine", 2_500_000), ("yacht", 10)):
        (tmp_path / "uci" / f"{name}.npz").write_bytes(bytes(size))
    monkeypatch.setenv(VARIABLE, str(tmp_path))

    def verdict(entry, _):
        if entry.name == "yacht":
            raise DataError("Expected yacht, but got a boat.")
        return entry.name == "wine"

    monkeypatch.setattr(inventory, "verify", verdict)
    return tmp_path


def test_a_survey_says_what_is_where(data):
    found = {each.name: each for each in inventory.survey()}
    assert list(found) == list(SETS)
    assert found["boston"].path == data / "uci" / "boston.npz"
    assert found["svhn"].path is None
    assert "svhn" in inventory.survey().missing


def test_a_survey_prints_as_a_table(data):
    lines = str(inventory.survey(["boston", "wine", "power"])).splitlines()
    assert lines == [
        "set     rows x features  on disk  where",
        f"boston  506 x 13         1 kB     {data}/uci/boston.npz",
        f"wine    1,599 x 11       2.5 MB   {data}/uci/wine.npz",
        "power   9,568 x 4        -        missing",
        "",
        f"SPLITPOINT_DATA names {data}.",
        "To get what is missing: splitpoint data download power",
    ]


def test_a_set_is_found_in_any_of_its_forms_with_the_size_of_that_form(data):
    (data / "notmnist.npz").write_bytes(b"")
    found = next(iter(inventory.survey(["notmnist"])))
    assert (found.path, found.size) == (data / "notmnist.npz", "10,000 x 28 x 28")


def test_what_cannot_be_downloaded_has_advice_of_its_own(data):
    advice = str(inventory.survey(["imagenet", "imagenet_o"])).splitlines()[-2:]
    assert advice[0] == "To get what is missing: splitpoint data download imagenet_o"
    assert advice[1].startswith("To get imagenet: accept its licence at image-net.org")


def test_a_check_adds_what_it_found(data):
    checked = inventory.check(["boston", "wine", "yacht", "power"])
    assert [found.verdict for found in checked] == ["whole", "reordered", "DAMAGED", ""]
    assert [found.damage for found in checked.damaged] == ["Expected yacht, but got a boat."]
    lines = str(checked).splitlines()
    assert lines[0] == "set     rows x features  on disk  checked    where"
    assert lines[3].startswith("yacht   308 x 6          0 kB     DAMAGED    /")
    assert lines[4] == "power   9,568 x 4        -        -          missing"
    assert "reordered: the right rows in another order" in str(checked)


def test_without_the_variable_it_says_what_to_do(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    text = str(inventory.survey())
    assert "SPLITPOINT_DATA is not set" in text
    assert "splitpoint data download NAME --to DIR, and then: export SPLITPOINT_DATA=DIR" in text


def test_a_folder_of_too_many_files_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(inventory, "MOST_ENTRIES", 3)
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * 2000)
    assert inventory._bytes(tmp_path) == "6 kB"
    (tmp_path / "one-more").touch()
    assert inventory._bytes(tmp_path) == "-"


# Verifying


def with_checksums(name, checksums, form=0):
    """The entry of a set of images, with other checksums for one of its forms."""
    entry = SETS[name]
    forms = [replace(each, checksums=checksums) if place == form else each for place, each in enumerate(entry.forms)]
    return replace(entry, forms=tuple(forms))


@pytest.mark.parametrize("name", SETS)
def test_real_sets_are_whole(name):
    path = locate(*SETS[name].paths)
    if path is None:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {' or '.join(SETS[name].paths)}")
    assert verify(SETS[name], path) is False


def test_a_file_that_is_missing_or_changed_is_named(tmp_path):
    entry = with_checksums("cifar100", {"train.bin": "size:3", "test.bin": "size:2"})
    (tmp_path / "train.bin").write_bytes(b"abc")
    with pytest.raises(DataError, match=r"cifar100 to have a file test.bin, but .* has none; get it again with"):
        verify(entry, tmp_path)
    (tmp_path / "test.bin").write_bytes(b"abc")
    with pytest.raises(DataError, match=r"test.bin to have size:2, but it has not; get it again with: splitpoint data"):
        verify(entry, tmp_path)
    (tmp_path / "test.bin").write_bytes(b"ab")
    assert verify(entry, tmp_path) is False


def test_an_array_that_changed_is_named(tmp_path):
    entry = with_checksums("mnist", {"x_train": array_checksum(np.ones(3, np.uint8))})
    np.savez(tmp_path / "mnist.npz", x_train=np.ones(3, np.uint8))
    assert verify(entry, tmp_path / "mnist.npz") is False
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match="Expected the values of mnist, but its array x_train has others"):
        verify(entry, tmp_path / "mnist.npz")
    np.savez(tmp_path / "mnist.npz", other=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match="to hold the arrays of mnist, but they cannot be read"):
        verify(entry, tmp_path / "mnist.npz")


def test_files_are_counted_where_nobody_published_a_checksum(tmp_path):
    entry = with_checksums("imagenet_o", {"n*/*.JPEG": "files:2"})
    (tmp_path / "n00000001").mkdir()
    for name in ("a.JPEG", "b.txt", "._a.JPEG"):
        (tmp_path / "n00000001" / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"Expected imagenet_o to have 2 files n\*/\*.JPEG, but .* has 1; get it again"):
        verify(entry, tmp_path)
    (tmp_path / "n00000001" / "b.JPEG").write_bytes(b"")
    assert verify(entry, tmp_path) is False


def test_another_form_is_compared_with_its_own_checksums(tmp_path):
    arrays = {"x_test": np.ones((2, 3), np.uint8), "y_test": np.zeros(2, np.uint8)}
    sums = {key: array_checksum(value) for key, value in arrays.items()}
    entry = with_checksums("notmnist", sums, form=1)
    np.savez(tmp_path / "notmnist.npz", **arrays)
    assert verify(entry, tmp_path / "notmnist.npz") is False
    np.savez(tmp_path / "notmnist.npz", **arrays | {"y_test": np.ones(2, np.uint8)})
    with pytest.raises(DataError, match="its array y_test has others"):
        verify(entry, tmp_path / "notmnist.npz")


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
    sums = {key: array_checksum(value) for key, value in arrays.items()}
    assert verify(with_checksums("mnist", sums), tmp_path) is False
    with pytest.raises(DataError, match="Expected the values of mnist, but its array x_train has others"):
        verify(SETS["mnist"], tmp_path)
