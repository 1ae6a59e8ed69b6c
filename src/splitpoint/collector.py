"""Rows that come batch by batch on their way into a table, and whether a model still gives the rows it once gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.disk_table import DiskTable
from splitpoint.errors import CacheError
from splitpoint.tasks import ColumnName, Rows

PROBE_ROWS = 8
"""Recorded rows at least whose features and outputs are compared with what the model gives now."""

BEHAVIOUR: tuple[ColumnName, ...] = ("features", "context", "output", "logits")
"""Columns that tell how a model behaves."""

SAME_PLACE, OTHER_PLACE = 1e-3, 3e-2
"""Largest `disagreement` of these columns on one kind of device and version of torch, and between two of them."""


class Collector:
    """Rows that come batch by batch, kept in memory or in a directory, which skips what it holds already.

    Args:
        directory: where they are kept; None for in memory.
        identity: see `DiskTable`.
        place: kind of device and version of torch that they are computed with, in words.
    """

    def __init__(self, directory: Path | None, identity: dict[str, Any], place: str) -> None:
        self.disk = None if directory is None else DiskTable.open(directory, identity)
        self.place = place
        self.parts: list[Rows] = []
        self.held = False
        self._checked = 0

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return sum(e["rows"] for e in self.disk.journal) if self.disk else sum(_length(part) for part in self.parts)

    @property
    def suffices(self) -> bool:
        """Whether the batch that was asked for is held, and the model is known to be the one that it is from."""
        return self.held and self._checked >= PROBE_ROWS

    def holds(self, fingerprint: str) -> bool:
        """Whether the next batch is there already; moves on to the batch after it."""
        self.held = self.disk is not None and self.disk.holds(fingerprint)
        return self.held

    def add(self, rows: Rows, fingerprint: str, facts: dict[str, Any]) -> None:
        """Keep the rows of a batch, and the facts beside those of the first; rows that are there are compared."""
        if self.disk is None:
            self.parts.append(rows)
            return
        if self.disk.meta is None:
            columns = {name: (own.shape[1], str(own.dtype).removeprefix("torch.")) for name, own in rows.items()}
            self.disk.start({"columns": columns, "place": self.place, **facts})
        if self.held:
            self._compare(rows, self.disk)
        else:
            self.disk.append(rows, fingerprint)

    def _compare(self, rows: Rows, disk: DiskTable) -> None:
        """Refuse a model that gives other rows than those that are recorded of the batch."""
        recorded, meta = disk.current(), disk.meta or {}
        tolerance = SAME_PLACE if meta["place"] == self.place else OTHER_PLACE
        for name in (name for name in BEHAVIOUR if name in recorded):
            gap = disagreement(rows[name], recorded[name])
            if not gap <= tolerance:
                raise CacheError(
                    f"Expected the model that {disk.directory} was recorded from, but one of the same weights gives "
                    f"{name} for the same rows that differ by {100 * gap:.2g}% (another activation, scaling of the "
                    "inputs, or chance in its forward pass?); use that model, or delete the cache."
                )
        self._checked += len(next(iter(recorded.values()), ()))

    def finish(self, dense: bool = False) -> Table:
        """The table, once every batch has been seen."""
        if self.disk is not None:
            return self.disk.finish(dense)
        names = list(self.parts[0])
        return Table.in_memory({name: torch.cat([part.pop(name) for part in self.parts]) for name in names}, dense)

    def close(self) -> None:
        """Keep what is written."""
        if self.disk is not None:
            self.disk.close()


def _length(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def disagreement(now: Tensor, then: Tensor) -> float:
    """Largest difference of a channel of rows (N, C) from what it was, relative to its size or to the usual one.

    The size of a channel is the root of the sum of its squares; the usual one is the root mean square of all of them,
    since rounding in a channel that is hardly ever active is not small in its own measure. Infinity for other shapes.

    >>> disagreement(torch.tensor([[10.0, 20.0]]), torch.tensor([[10.0, 10.0]]))
    0.5
    """
    if now.shape != then.shape:
        return float("inf")
    before, after = then.double(), now.to(then.device).double()
    size = torch.maximum(before.norm(dim=0), after.norm(dim=0))
    usual = size.square().mean().sqrt().clamp(min=1e-300)
    return float(((after - before).norm(dim=0) / torch.maximum(size, usual)).max())
