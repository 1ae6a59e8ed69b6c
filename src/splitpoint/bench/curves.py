"""Predictions along the input of a task with one, as JSON lines: one line for each noise and method, the last one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitpoint.bench.record import finite
from splitpoint.files import write_text

CURVES = "curves.jsonl"


@dataclass(frozen=True)
class Curve:
    """What one method says on a grid, beside the truth and some training rows; all in units of the target.

    Attributes:
        noise: law of the noise.
        method: id of the method.
        x: the grid.
        mean: prediction on it.
        lower: lower bound of the interval; `upper` likewise.
        upper: upper bound.
        epistemic: score of the method.
        truth: the target without noise.
        true_lower: bound below which the interval's share of the noise on that side ends; `true_upper` likewise.
        true_upper: the same above.
        train_x: inputs of some training rows.
        train_y: their targets.
    """

    noise: str
    method: str
    x: list[float]
    mean: list[float]
    lower: list[float]
    upper: list[float]
    epistemic: list[float]
    truth: list[float]
    true_lower: list[float]
    true_upper: list[float]
    train_x: list[float]
    train_y: list[float]


class KeyedLines:
    """JSON lines of which the last one of every key counts; rewritten as a whole or not at all.

    Args:
        path: the file.
        keys: names of the entries that make up the key of a line.
    """

    def __init__(self, path: Path, keys: tuple[str, ...]) -> None:
        self.path, self.keys = path, keys

    def put(self, line: Mapping[str, Any]) -> None:
        """Add a line, in the place of one with the same key."""
        found = {self._key(known): known for known in self.lines()}
        found[self._key(line)] = finite(dict(line))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, "".join(json.dumps(known) + "\n" for known in found.values()))

    def lines(self) -> list[Mapping[str, Any]]:
        """The lines that are there, as they are written; damaged ones do not count."""
        if not self.path.is_file():
            return []
        text = self.path.read_text(encoding="utf-8", errors="replace")
        return [line for line in map(self._whole, text.splitlines()) if line is not None]

    def _whole(self, text: str) -> Mapping[str, Any] | None:
        try:
            line = json.loads(text)
        except ValueError:
            return None
        return line if isinstance(line, dict) and all(name in line for name in self.keys) else None

    def _key(self, line: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(line[name]) for name in self.keys)


def curve_file(folder: Path) -> KeyedLines:
    """The curves of a folder, one for each noise and method."""
    return KeyedLines(folder / CURVES, ("noise", "method"))
