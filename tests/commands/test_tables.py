"""Files of rows: the same numbers from every kind, parts in order, and one sentence for what is no number."""

from datetime import date

import numpy as np
import pytest

from splitpoint.commands import tables as module
from splitpoint.commands.tables import open_table
from splitpoint.errors import DataError

FEATURES = ["age", "income"]


def written(folder, columns, kind):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    path, table = folder / f"written.{kind}", arrow.table(columns)
    (parquet.write_table if kind == "parquet" else csv.write_csv)(table, path)
    return path


def numbers(path, name, size=2):
    return [part.numbers(name).tolist() for part in open_table(path).parts([name], size)]


KINDS = pytest.mark.parametrize("kind", ["parquet", "csv"])


@KINDS
def test_parts_hold_the_rows_in_order_and_know_their_place(kind, tmp_path):
    table = open_table(written(tmp_path, {"age": [1, 2, 3, 4, 5], "income": [0.5, 1.5, 2.5, 3.5, 4.5]}, kind))
    assert table.names == ("age", "income")
    parts = list(table.parts(["income", "age"], 2))
    assert [(part.first, part.rows) for part in parts] == [(0, 2), (2, 2), (4, 1)]
    assert [part.numbers("income").tolist() for part in parts] == [[0.5, 1.5], [2.5, 3.5], [4.5]]
    assert parts[0].labels("age") == ([1, 2] if kind == "parquet" else ["1", "2"])


def test_arrays_are_read_as_they_are(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.arange(12.0).reshape(6, 2), name=np.array(list("abcdef")), gap=[1, np.nan] * 3)
    table = open_table(tmp_path / "a.npz")
    assert (table.names, table.rows, table.matrices()) == (("X", "name", "gap"), 6, ("X",))
    first, second = table.parts(table.names, 4)
    assert first.numbers("X").shape == (4, 2)
    assert second.labels("name") == ["e", "f"]
    assert second.labels("gap") == [1.0, None]


@KINDS
def test_missing_numbers_are_nan_and_truth_is_one(kind, tmp_path):
    path = written(tmp_path, {"age": [1.0, None, 3.0], "flag": [True, False, None]}, kind)
    assert str(numbers(path, "age", 3)) == "[[1.0, nan, 3.0]]"
    assert str(numbers(path, "flag", 3)) == "[[1.0, 0.0, nan]]"


def test_a_column_of_a_csv_file_is_not_what_its_first_block_suggests(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(module, "BLOCK", 256)
    (tmp_path / "a.csv").write_text("age,income\n" + "1,2\n" * 200 + " 1.5 ,NA\n" + "TRUE,1e3\n")
    parts = list(open_table(tmp_path / "a.csv").parts(FEATURES, 1000))
    assert len(parts) > 1
    assert np.concatenate([part.numbers("age") for part in parts])[-2:].tolist() == [1.5, 1.0]
    assert str(np.concatenate([part.numbers("income") for part in parts])[-2:].tolist()) == "[nan, 1000.0]"
    assert [part.first for part in parts] == np.cumsum([0, *(part.rows for part in parts)])[:-1].tolist()


def test_text_that_looks_like_a_missing_number_is_a_label(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text("country,age\nNA,1\n,2\nnull,3\n")
    part = open_table(tmp_path / "a.csv").beginning(["country"], 3)
    assert part.labels("country") == ["NA", None, "null"]


def test_dictionaries_of_parquet_are_text(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"a": arrow.array(["x", "y", "x"]).dictionary_encode()}), tmp_path / "a.parquet")
    part = open_table(tmp_path / "a.parquet").beginning(["a"], 3)
    assert part.labels("a") == ["x", "y", "x"]
    with pytest.raises(DataError, match="numbers in column 'a'"):
        part.numbers("a")


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        (["x", "y"], "parquet", "it holds text;"),
        (["1", "y"], "csv", "it holds text such as 'y';"),
        ([date(2020, 1, 1), date(2020, 1, 2)], "parquet", "it holds date32"),
        ([[1, 2], [3, 4]], "parquet", "it holds list<"),
    ],
)
def test_columns_that_are_no_numbers_are_named(values, kind, said, tmp_path):
    path = written(tmp_path, {"age": values}, kind)
    with pytest.raises(DataError, match=f"Expected numbers in column 'age' of .*{said}"):
        numbers(path, "age")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "", "Empty CSV file"),
        ("a.csv", "a,b\n1\n", "Expected 2 columns, got 1"),
        ("a.csv", "a,a\n1,2\n", "a name of its own for each column, but .* has a twice"),
        ("a.csv", "a;b\n1;2\n", "a csv file with commas, but .* semicolons"),
        ("a.csv", "a\tb\n1\t2\n", "a csv file with commas, but .* tabs"),
        ("a.csv", b"a,b\n\xff\xfe,2\n", "cannot be read"),
        ("a.parquet", "PAR1", "a whole parquet file, but"),
    ],
)
def test_files_that_are_something_else_are_one_sentence(name, content, said, tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=f"(?s)Expected .*{said}"):
        numbers(tmp_path / name, "a")


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"X": np.zeros((3, 2)), "y": np.zeros(4)}, r"a row each .* X \(3, 2\), y \(4,\)"),
        ({"X": np.zeros(3), "n": np.zeros(())}, r"n \(\)"),
        ({}, "has none"),
        ({"X": np.array([object()])}, "numbers or text"),
    ],
)
def test_arrays_that_are_no_rows_are_one_sentence(arrays, said, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=f"Expected arrays .*{said}"):
        open_table(tmp_path / "a.npz")


def test_a_file_has_to_be_there_and_of_a_kind_that_is_known(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        open_table(tmp_path / "a.csv")
    (tmp_path / "a.txt").write_text("1")
    (tmp_path / "a.npz").write_text("1")
    with pytest.raises(DataError, match="Expected rows in a file"):
        open_table(tmp_path / "a.txt")
    with pytest.raises(DataError, match="cannot be read"):
        open_table(tmp_path / "a.npz")


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    from splitpoint.errors import SettingsError

    (tmp_path / "a.csv").write_text("a\n1\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r"package pyarrow, which .*pip install '\.\[tables\]'"):
        open_table(tmp_path / "a.csv")


def test_no_rows_are_one_sentence(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text("a,b\n")
    with pytest.raises(DataError, match=r"Expected rows in .* but there are none"):
        open_table(tmp_path / "a.csv").beginning(["a"], 1)
