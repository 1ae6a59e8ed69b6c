"""Rows made up in the likeness of a batch."""

import json
from typing import NamedTuple

import pytest
import torch

from splitpoint.batches import Batch
from splitpoint.errors import StorageError
from splitpoint.likeness import ENOUGH, ROWS, Drawn, Likeness, StrangeError

CPU = torch.device("cpu")


class Pair(NamedTuple):
    one: torch.Tensor
    two: torch.Tensor


def like(*args, **kwargs):
    rows = next(len(arg) for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor))
    return Likeness.of(Batch(args, kwargs, torch.zeros(rows)))


def made(likeness, cast=None):
    batch = likeness.batch(CPU, cast or {})
    return [*batch.args, *batch.kwargs.values()]


def test_rows_are_the_same_every_time_and_none_of_the_data():
    x = torch.randn(50, 3)
    (one,), (again,) = made(like(x)), made(like(x))
    assert one.shape == (ROWS, 3)
    assert torch.equal(one, again)
    assert not any(torch.equal(row, other) for row in one for other in x)


def test_numbers_lie_between_the_smallest_and_the_largest_of_their_column():
    x = torch.stack([torch.linspace(0, 1, 20), torch.linspace(-3e6, -2e6, 20)], 1)
    (rows,) = made(like(x))
    assert ((rows[:, 0] >= 0) & (rows[:, 0] <= 1)).all()
    assert ((rows[:, 1] >= -3e6) & (rows[:, 1] <= -2e6)).all()
    assert rows.std(0).min() > 0.05


def test_ends_of_floats_are_rounded_so_that_a_file_holds_no_number_of_the_data():
    kept = Drawn.like(torch.full((ENOUGH, 1), 1.23456), ENOUGH)
    assert (kept.low, kept.high) == ([1.2], [1.2])


def test_columns_of_a_few_rows_share_their_ends_since_they_would_tell_the_rows():
    kept = Drawn.like(torch.tensor([[1, 5, 9]]), 1)
    assert (kept.low, kept.high) == (1, 9)


def test_whole_numbers_are_drawn_from_those_of_their_column_with_both_ends():
    x = torch.stack([torch.arange(20) % 2, 7 + torch.arange(20) % 3], 1)
    spec = like(x.repeat(50, 1))
    many = spec._replace(args=(Drawn((1000, 2), "int64", *ends(spec)),))
    (rows,) = made(many)
    assert rows.dtype == torch.int64
    assert [sorted(set(column)) for column in rows.T.tolist()] == [[0, 1], [7, 8, 9]]


def ends(likeness):
    return likeness.args[0].low, likeness.args[0].high


def test_booleans_stay_booleans_and_what_is_no_tensor_stays():
    mask = torch.arange(20) % 2 == 0
    x, flag, mode, rate, nothing, part = made(like(torch.rand(20, 2), mask, "train", 0.5, None, deep={"a": [mask]}))
    assert (flag.dtype, flag.shape) == (torch.bool, (ROWS,))
    assert (mode, rate, nothing) == ("train", 0.5, None)
    assert part["a"][0].shape == (ROWS,)
    assert x.shape == (ROWS, 2)


def test_a_tensor_that_belongs_to_no_row_keeps_its_shape():
    rows, edges = made(like(torch.rand(20, 2), torch.randint(9, (2, 33))))
    assert (rows.shape, edges.shape) == ((ROWS, 2), (2, 33))


def test_on_other_devices_no_place_is_drawn_that_may_be_beyond_its_table():
    for value in (torch.zeros(2, 9, dtype=torch.int64), torch.zeros(4, 3, 2, dtype=torch.int32)):
        assert Drawn.like(value, 4).low == 0
        with pytest.raises(StrangeError):
            Drawn.like(value.to("meta"), 4)


def test_numbers_that_are_not_finite_do_not_count():
    x = torch.tensor([[1.0], [float("nan")], [2.0], [float("inf")]])
    kept = Drawn.like(x, 4)
    assert (kept.low, kept.high) == (1, 2)
    assert Drawn.like(torch.full((4, 1), float("nan")), 4).low == 0


@pytest.mark.parametrize(
    "strange",
    [["a", "b"], Pair(torch.rand(2), torch.rand(2)), {1: torch.rand(2)}, object(), torch.rand(2, dtype=torch.cfloat)],
    ids=["texts", "named tuple", "keys", "object", "complex"],
)
def test_there_are_no_rows_like_what_a_file_cannot_hold(strange):
    assert like(torch.rand(2, 1), strange) is None


def test_a_likeness_survives_a_file():
    given = like(torch.rand(20, 2), (torch.arange(20), [None, "x"][:1]), more={"a": torch.rand(20, 3, 4)}, rate=0.5)
    again = Likeness.read(json.loads(json.dumps(given.described())))
    assert again == given
    assert isinstance(again.args[1], tuple)
    for one, other in zip(made(given)[0:1], made(again)[0:1], strict=True):
        assert torch.equal(one, other)


def test_numbers_of_a_type_may_come_in_another():
    x, other = made(like(torch.rand(20, 2), torch.rand(20, dtype=torch.float64)), {torch.float32: torch.bfloat16})
    assert (x.dtype, other.dtype) == (torch.bfloat16, torch.float64)


def test_a_file_that_claims_a_huge_tensor_is_refused_before_it_is_made():
    huge = {"args": {"parts": [{"tensor": [10**12], "dtype": "float32", "low": 0, "high": 1}], "list": False}}
    with pytest.raises(StorageError, match=r"Expected a few made-up rows, but got a tensor of \[1000000000000\]"):
        Likeness.read(huge | {"kwargs": {"named": {}}})
