"""What the hardening benchmark says of one promise."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One promise, on how many of the cases it held, and the worst case in words."""

    promise: str
    holds: int
    of: int
    worst: str
