"""Features are found by name, whatever else a file holds and in whatever order; labels keep their meaning."""

import numpy as np
import pytest
import torch

from splitpoint.commands.columns import Columns
from splitpoint.commands.tables import open_table
from splitpoint.errors import DataError, SettingsError, StorageError

ROWS = {"age": [1.0, 2.0], "income": [3, 4], "vip": [True, False], "price": [5.0, np.nan], "kind": ["dog", "cat"]}


@pytest.fixture
def table(tmp_path):
    def written(name="rows.npz", without=(), **changes):
        columns = {key: values for key, values in ROWS.items() if key not in without} | changes
        np.savez(tmp_path / name, **{key: np.array(values) for key, values in columns.items()})
        return open_table(tmp_path / name)

    return written


def columns(table, task="regression", targets=("price",), **more):
    return Columns.of(table, task, more.pop("features", ["age", "income"]), targets, **more)


def test_features_are_all_columns_but_the_target_in_order(table):
    found = Columns.of(table(without=["kind"]), "regression", None, ["price"], without=["vip"])
    assert (found.features, found.shape, found.targets) == (("age", "income"), (2,), ("price",))


def test_numbers_side_by_side_are_float32_and_found_in_another_order(table):
    found = columns(table(), features=["age", "income", "vip"])
    moved = table("moved.npz", without=ROWS, vip=[True, False], z=["a", "b"], income=[3, 4], age=[1.0, 2.0])
    for other in (table(), moved):
        inputs = found.inputs(other.beginning(found.features, 2))
        assert inputs.dtype == torch.float32
        assert inputs.tolist() == [[1, 3, 1], [2, 4, 0]]


def test_an_array_with_a_name_that_everybody_uses_needs_no_option(table):
    arrays = table("a.npz", without=ROWS, X=np.zeros((2, 3, 4)), y=[1.0, 2.0], id=[7, 8])
    found = Columns.of(arrays, "regression")
    assert (found.features, found.shape, found.targets) == (("X",), (3, 4), ("y",))


def test_what_is_missing_is_named(table):
    found = columns(table())
    with pytest.raises(DataError, match=r"the features age, income, but .* lacks income; it has age, vip, price, kind"):
        found.check(table("less.npz", without=["income"]))
    with pytest.raises(DataError, match="the targets price, but"):
        found.check(table("less.npz", without=["price"]), targets=True)
    found.check(table("less.npz", without=["price"]))


@pytest.mark.parametrize(("value", "said"), [(np.nan, "no value"), (np.inf, "inf"), (1e300, "inf")])
def test_features_without_a_finite_value_are_named_with_their_row(table, value, said):
    found, gaps = columns(table()), table("gaps.npz", age=[1.0, 2.0, 3.0], income=[1, 2, value], without=ROWS)
    with pytest.raises(DataError, match=rf"column 'income' of .*gaps.npz has {said} in row 3;"):
        list(map(found.inputs, gaps.parts(found.features, 2)))


def test_targets_may_be_missing(table):
    found = columns(table())
    assert str(found.wanted(table().beginning(["price"], 2)).tolist()) == "[5.0, nan]"
    both = columns(table(), targets=["price", "age"], features=["income"])
    assert both.wanted(table().beginning(["price", "age"], 2)).shape == (2, 2)
    kinds = columns(table(), "classification", ["kind"])
    gaps = table("gaps.npz", kind=["cat", ""])
    assert kinds.wanted(gaps.beginning(["kind"], 2)).tolist() == [0, -100]


def test_text_labels_are_classes_in_alphabetical_order_or_as_they_are_named(table):
    found = columns(table(), "classification", ["kind"])
    part = table().beginning(["kind"], 2)
    assert found.classes == ("cat", "dog")
    assert found.wanted(part).tolist() == [1, 0]
    named = columns(table(), "classification", ["kind"], classes=["dog", "eel", "cat"])
    assert named.wanted(part).tolist() == [0, 2]
    assert named.named(torch.tensor([1, 0])) == ["eel", "dog"]


@pytest.mark.parametrize("labels", [[2, 0], [2.0, 0.0], ["2", "0"], ["2.0", "0"], [np.nan, 0], [True, False]], ids=str)
def test_whole_labels_are_the_numbers_of_classes(table, labels):
    rows = table("n.npz", kind=labels)
    found = columns(rows, "classification", ["kind"])
    assert found.classes == ()
    first = {"2": 2, "n": -100, "T": 1}[str(labels[0])[0]]
    assert found.wanted(rows.beginning(["kind"], 2)).tolist() == [first, 0]
    assert found.named(torch.tensor([2])) == [2]


def test_numbers_may_be_names_of_classes(table):
    rows = table("n.npz", kind=[20, 10])
    found = columns(rows, "classification", ["kind"], classes=["10", "20"])
    assert found.wanted(rows.beginning(["kind"], 2)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (["dog", "cow"], r"one of the classes cat, dog in column 'kind', but .* has 'cow' in row 2"),
        ([1, 0], "has 1 in"),
    ],
)
def test_labels_of_no_class_are_named_with_their_row(table, kind, said):
    found = columns(table(), "classification", ["kind"])
    with pytest.raises(DataError, match=said):
        found.wanted(table("other.npz", kind=kind).beginning(["kind"], 2))


def test_fractions_are_no_classes(table):
    for values in ([0.5, 1.0], ["0.5", "1"]):
        with pytest.raises(DataError, match=r"classes in column 'kind' .* but it holds '?0.5'?; .*--task regression"):
            columns(table("n.npz", kind=values), "classification", ["kind"])


def test_too_many_labels_are_no_classes(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.zeros((10_001, 1)), y=[f"n{row}" for row in range(10_001)])
    with pytest.raises(DataError, match="more than 10,000 different values"):
        Columns.of(open_table(tmp_path / "a.npz"), "classification")


def test_columns_are_remembered_as_notes(table):
    for found in (columns(table()), columns(table(), "classification", ["kind"])):
        assert Columns.of_notes(found.notes()) == found
        assert all(isinstance(text, str) for text in found.notes().values())
    with pytest.raises(StorageError, match="lack or garble 'shape'"):
        Columns.of_notes({name: text for name, text in found.notes().items() if name != "shape"})


@pytest.mark.parametrize(
    ("features", "targets", "said"),
    [
        (["agee"], ["price"], "got 'agee'; did you mean 'age'"),
        (["age"], ["prize"], "a column of .* with --target, but got 'prize'; did you mean 'price'"),
        (["price", "age"], ["price"], "features that are no targets or groups, but got price"),
        (None, ["price", "age", "income", "vip", "kind"], "columns with features"),
        (["kind"], ["price"], "numbers in column 'kind'"),
    ],
)
def test_wrong_names_are_one_sentence(table, features, targets, said):
    with pytest.raises((DataError, SettingsError), match=said):
        Columns.of(table(), "regression", features, targets)


def test_arrays_and_columns_do_not_mix(table):
    mixed = table("m.npz", Z=np.zeros((2, 3)))
    with pytest.raises(DataError, match="one array of features or columns of numbers"):
        Columns.of(mixed, "regression", ["Z", "age"], ["price"])


def test_another_shape_is_one_sentence(table):
    found = Columns.of(table("a.npz", without=ROWS, X=np.zeros((2, 3)), y=[1.0, 2.0]), "regression")
    with pytest.raises(DataError, match=r"rows of shape \(3,\), but 'X' of .* has \(4,\) in row 1"):
        found.inputs(table("b.npz", without=ROWS, X=np.zeros((2, 4))).beginning(["X"], 2))


def test_a_classification_has_one_target(table):
    with pytest.raises(SettingsError, match="one target for a classification"):
        columns(table(), "classification", ["kind", "vip"])
