import numpy as np
import pytest

from splitpoint.datasets import npz
from splitpoint.errors import DataError


def test_what_is_written_is_read(tmp_path):
    arrays = {"X": np.arange(6.0).reshape(2, 3), "y": np.arange(2, dtype=np.uint8)}
    npz.write(tmp_path / "a.npz", arrays)
    found = npz.read("a", tmp_path / "a.npz", ["y", "X"])
    assert all(np.array_equal(found[key], arrays[key]) and found[key].dtype == arrays[key].dtype for key in arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    npz.write(tmp_path / "a.npz", {"X": np.ones(3)})
    before = (tmp_path / "a.npz").read_bytes()

    def fail(file, **_):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space left"):
        npz.write(tmp_path / "a.npz", {"X": np.zeros(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert (tmp_path / "a.npz").read_bytes() == before


def test_a_plain_array_is_no_npz(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(DataError, match=r"to hold the arrays of a, but they cannot be read; get it again with"):
        npz.read("a", tmp_path / "a.npy", ["X"])
