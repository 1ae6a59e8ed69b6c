from pathlib import Path

import pytest

from splitpoint.datasets import SETS
from splitpoint.datasets.entry import VARIABLE, find
from splitpoint.errors import DataError


def test_the_first_folder_that_has_the_file_is_taken(tmp_path, monkeypatch):
    for folder in ("one", "two", "three"):
        (tmp_path / folder).mkdir()
    for folder in ("two", "three"):
        (tmp_path / folder / "set.npz").write_bytes(b"")
    monkeypatch.setenv(VARIABLE, ":".join(str(tmp_path / folder) for folder in ("one", "two", "three")))
    assert find("set.npz") == tmp_path / "two" / "set.npz"


def test_a_missing_set_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(
        DataError, match=rf"Expected to find a/b.npz, but {VARIABLE} names .*{tmp_path.name}; set it to"
    ):
        find("a/b.npz")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere \(no such folder\); set it to"):
        find("a/b.npz")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(DataError, match="names no folder"):
        find("a/b.npz")


def test_every_form_of_a_set_has_its_own_checksums_and_size():
    entry = SETS["notmnist"]
    assert entry.form_at(Path("data/notMNIST_small")).checksums == {"[A-J]/*.png": "files:18724-18726"}
    assert entry.size_at(Path("data/notMNIST_small")) == entry.size_at(None) == "18,726 x 28 x 28"
    assert list(entry.form_at(Path("data/notmnist.npz")).checksums) == ["x_test", "y_test"]
    assert entry.size_at(Path("data/notmnist.npz")) == "10,000 x 28 x 28"
    assert SETS["mnist"].size_at(Path("data/MNIST/raw")) == "70,000 x 28 x 28"


def test_a_set_that_cannot_be_downloaded_has_another_cure(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert SETS["mnist"].cure == "get it again with: splitpoint data download mnist"
    monkeypatch.delenv(VARIABLE)
    assert SETS["mnist"].cure == "get it again with: splitpoint data download mnist --to DIR"
    assert SETS["imagenet"].cure.startswith("accept its licence at image-net.org and put its images into")
