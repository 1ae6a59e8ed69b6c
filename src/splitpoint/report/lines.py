"""Files of JSON lines beside the records, whatever interrupted their writing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from splitpoint.errors import DataError

Item = TypeVar("Item")


def read_whole(path: Path, parsed: Callable[[Any], Item]) -> list[Item]:
    """What `parsed` makes of every line of a file, none without one; lines that it refuses do not count.

    Args:
        path: the file.
        parsed: from the value of a line to an item; any of ValueError, TypeError, KeyError and AttributeError refuses.
    """
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return [item for line in file for item in _accepted(line, parsed)]


def _accepted(line: str, parsed: Callable[[Any], Item]) -> list[Item]:
    try:
        return [parsed(json.loads(line))]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def number(value: float | None) -> float:
    """A number of a line, where null stands for one that is not finite."""
    return math.nan if value is None else float(value)


def numbers(values: Iterable[float | None]) -> tuple[float, ...]:
    """Several of them."""
    return tuple(map(number, values))


def word(value: Any) -> str:
    """A name of a line; a DataError for anything else."""
    if not isinstance(value, str):
        raise DataError(f"Expected a name, but got {value!r}.")
    return value
