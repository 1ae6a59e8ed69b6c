"""Files of JSON lines: whole lines count, whatever else is in the file."""

import math

import pytest

from splitpoint.errors import DataError
from splitpoint.report.lines import number, numbers, read_whole, word


def test_lines_that_are_torn_or_refused_do_not_count(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2\n[]\n{"b": 3}\n\xff\n\n{"a": 4}')
    assert read_whole(path, lambda values: values["a"]) == [1, 4]


def test_no_file_no_lines(tmp_path):
    assert read_whole(tmp_path / "none.jsonl", lambda values: values) == []


def test_null_stands_for_a_number_that_is_not_finite():
    assert numbers([1, 2.5]) == (1.0, 2.5)
    assert math.isnan(number(None))


@pytest.mark.parametrize("value", [1, None, ["a"]])
def test_names_are_words(value):
    with pytest.raises(DataError, match="Expected a name"):
        word(value)
