import pytest

from splitpoint.datasets.folders import VARIABLE, find
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
