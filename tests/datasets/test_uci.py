"""The nine regression sets. Tests that read real files are skipped where SPLITPOINT_DATA does not name them."""

import numpy as np
import pytest
import torch

from splitpoint.datasets import checksums, folders, uci
from splitpoint.errors import DataError, SettingsError

SIZES = {
    "boston": (506, 13),
    "concrete": (1030, 8),
    "energy": (768, 8),
    "kin8nm": (8192, 8),
    "naval": (11934, 16),
    "power": (9568, 4),
    "protein": (45730, 9),
    "wine": (1599, 11),
    "yacht": (308, 6),
}
"""As the paper's table of data sets prints them."""


def real(name, target=None):
    if folders.locate(uci.path_of(name)) is None:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {uci.path_of(name)}")
    return uci.load(name, target)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A set of five rows and two targets, with a file that is right; returns its arrays and the way to write others."""
    arrays = {"X": np.arange(10.0).reshape(5, 2), "y": np.arange(5.0), "y_all": np.arange(10.0, 20.0).reshape(5, 2)}
    sums = {key: checksums.of_array(value) for key, value in arrays.items()}
    sums["rows"] = checksums.of_rows(list(arrays.values()))
    monkeypatch.setitem(uci.TABLES, "small", uci.Table(5, 2, ("first", "second"), sums))
    monkeypatch.setenv(folders.VARIABLE, str(tmp_path))
    (tmp_path / "uci").mkdir()

    def write(**changed):
        np.savez(tmp_path / "uci" / "small.npz", **(arrays | changed))
        return tmp_path / "uci" / "small.npz"

    write()
    return arrays, write


# Real files


def test_the_table_has_the_sizes_of_the_paper():
    assert {name: (table.rows, table.features) for name, table in uci.TABLES.items()} == SIZES


@pytest.mark.parametrize("name", SIZES)
def test_real_sets_are_whole(name):
    data = real(name)
    assert data.X.shape == SIZES[name]
    assert data.y.shape == (SIZES[name][0], 1)
    assert data.X.dtype == data.y.dtype == torch.float64
    assert data.X.isfinite().all()
    assert data.y.isfinite().all()
    assert (data.name, data.target, data.reordered) == (name, uci.TABLES[name].targets[0], False)


def test_known_rows():
    """First rows as the descriptions of the sets print them."""
    boston = real("boston")
    assert boston.X[0].tolist() == [0.00632, 18, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3, 396.9, 4.98]
    assert boston.y[0].item() == 24.0
    yacht = real("yacht")
    assert yacht.X[0].tolist() == [-2.3, 0.568, 4.78, 3.99, 3.17, 0.125]
    assert yacht.y[0].item() == 0.11


@pytest.mark.parametrize(
    ("name", "targets", "rows"),
    [("energy", ("heating", "cooling"), (15.55, 21.33)), ("naval", ("compressor", "turbine"), (0.95, 0.975))],
)
def test_a_second_target_is_there_for_the_asking(name, targets, rows):
    first, second = (real(name, target) for target in targets)
    assert torch.equal(first.X, second.X)
    assert (first.y[0].item(), second.y[0].item()) == rows
    assert second.target == targets[1]


# What goes wrong


def test_both_targets_of_a_small_set(small):
    arrays, _ = small
    assert uci.load("small").y[:, 0].tolist() == arrays["y"].tolist()
    assert uci.load("small", "first").y[:, 0].tolist() == arrays["y"].tolist()
    assert uci.load("small", "second").y[:, 0].tolist() == arrays["y_all"][:, 1].tolist()


def test_names_that_do_not_exist(small):
    with pytest.raises(SettingsError, match=r"Expected a UCI set among boston, .*yacht, small, but got 'iris'"):
        uci.load("iris")
    with pytest.raises(SettingsError, match="Expected a target of small among first, second, but got 'third'"):
        uci.load("small", "third")


def test_a_missing_set_says_what_to_run(small, monkeypatch):
    monkeypatch.delenv(folders.VARIABLE)
    with pytest.raises(DataError, match=r"find uci/small.npz, .* or run: splitpoint data download small --to DIR\.$"):
        uci.load("small")


def test_rows_in_another_order_are_accepted_and_told(small):
    arrays, write = small
    write(**{key: value[::-1] for key, value in arrays.items()})
    data = uci.load("small")
    assert data.reordered
    assert data.y[:, 0].tolist() == arrays["y"][::-1].tolist()


def test_one_changed_number_is_noticed(small):
    arrays, write = small
    for key, value in arrays.items():
        changed = value.copy()
        changed.flat[3] += 1e-12
        path = write(**{key: changed})
        with pytest.raises(
            DataError, match=f"Expected the values of small, but {path} has other values.*download small"
        ):
            uci.load("small")


def test_another_size_is_named(small):
    _, write = small
    write(X=np.zeros((5, 3)))
    with pytest.raises(
        DataError, match=r"5 rows and 2 features, but those of .* have shape \(5, 3\); get it again with"
    ):
        uci.load("small")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "array", "pickle"])
def test_a_file_that_cannot_be_read(small, damage):
    arrays, write = small
    path = write()
    if damage == "array":
        np.savez(path, X=arrays["X"])
    elif damage == "pickle":
        np.savez(path, X=np.array([print], dtype=object), y=arrays["y"], y_all=arrays["y_all"])
    else:
        path.write_bytes({"cut": path.read_bytes()[:-100], "empty": b"", "text": b"no archive"}[damage])
    with pytest.raises(DataError, match=f"Expected {path} to hold the arrays of small, but they cannot be read"):
        uci.load("small")
