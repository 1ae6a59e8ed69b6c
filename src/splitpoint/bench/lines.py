"""Files of JSON lines that anything may have happened to: what the sound lines hold, and which lines are not sound."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from splitpoint.errors import DataError

T = TypeVar("T")

MOST_BYTES = 2**24
"""Of a line; the longest that are written hold some hundred thousand."""

MOST_DEPTH, MOST_LETTERS, LARGEST = 16, 500, 1e100
"""Of what a line holds: how deep it is nested, how long its names are, and how large its numbers."""

DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, MemoryError)
"""What reading a line that is not sound can end in."""


class Lines(NamedTuple, Generic[T]):
    """What a file holds.

    Attributes:
        found: what its sound lines hold.
        skipped: numbers, from 1, of the others.
    """

    found: list[T]
    skipped: list[int]


def read_lines(path: Path, parsed: Callable[[str], T | None]) -> Lines[T]:
    """What a file of JSON lines holds; nothing where there is no file.

    Args:
        path: the file.
        parsed: what the text of a line holds, None for what does not count; any of `DAMAGE` where it is not sound.
    """
    read: Lines[T] = Lines([], [])
    if not path.is_file():
        return read
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(MOST_BYTES):
            number += 1
            try:
                if len(line) == MOST_BYTES and not line.endswith(b"\n"):
                    while line and not line.endswith(b"\n"):
                        line = file.readline(MOST_BYTES)
                    raise DataError(f"Expected a line of less than {MOST_BYTES} bytes, but line {number} is longer.")
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                found = parsed(text) if text else None
                if found is not None:
                    read.found.append(found)
            except DAMAGE:
                read.skipped.append(number)
    return read


def mapping_of(text: str) -> dict[str, Any]:
    """The object that a line of JSON is; an error where it is none, or nested too deeply."""
    value = json.loads(text)
    if not isinstance(value, dict) or _depth(value) > MOST_DEPTH:
        raise DataError(f"Expected an object that is nested at most {MOST_DEPTH} deep.")
    return value


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, parts), default=0)


def name_of(value: Any) -> str:
    """A name, such as that of a method; an error where it is no short line of printable text."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > MOST_LETTERS:
        raise DataError(f"Expected a name of at most {MOST_LETTERS} letters.")
    return value


def text_of(value: Any) -> str:
    """A text without what files and pages cannot hold, such as halves of letters; an error where it is none."""
    if not isinstance(value, str):
        raise DataError(f"Expected a text, but got {type(value).__name__}.")
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in value
    )


def number_of(value: Any) -> float:
    """A number, NaN where it is null or beyond what can be computed with; an error where it is none."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"Expected a number, but got {type(value).__name__}.")
    number = float(value)
    return number if abs(number) <= LARGEST else math.nan


def count_of(value: Any) -> int:
    """A whole number that is not negative; an error where it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise DataError(f"Expected a whole number from 0, but got {type(value).__name__}.")
    return value


def plain(value: Any) -> Any:
    """A value of JSON with names and texts as they should be, at any depth."""
    if isinstance(value, dict):
        return {name_of(name): plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return text_of(value) if isinstance(value, str) else value
