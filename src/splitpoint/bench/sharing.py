"""Runs on one folder share their work: every piece is done by one of them, and what a killed one was at by another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from splitpoint.bench.record import Journal, Record
from splitpoint.bench.suite import Stacked
from splitpoint.locks import Claims, exclusive

LOCK, CLAIMS = "records.lock", "claims.lock"
"""Lock files of a folder: who writes to it, and who is at which trials."""

POLL_SECONDS = 0.5
"""Between two looks at what other runs are at."""


class Ledger:
    """The records of a folder as this run knows them; the file is read again only where another run wrote to it.

    Attributes:
        folder: of the records.
        records: those that were read, and those that were added.
        shared: whether another run wrote to the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.shared = folder, False
        self._journal = Journal(folder)
        self._size = self._journal.size
        self.records = self._journal.read()

    def append(self, make: Callable[[], list[Record]]) -> None:
        """Write records, alone among all runs; `make` may write what belongs to them."""
        with exclusive(self.folder / LOCK, f"{{holder}} writes to {self.folder}; waiting until it is done."):
            self.refresh()
            records = make()
            self._journal.append(records)
            self._size = self._journal.size
        self.records.extend(records)

    def refresh(self) -> None:
        """Read what other runs wrote."""
        size = self._journal.size
        if size != self._size:
            self._size, self.shared, self.records = size, True, self._journal.read()


@dataclass(frozen=True)
class Terms:
    """What a run needs to know of pieces to share them.

    Attributes:
        ledger: the records that the pieces were made from.
        names: from a piece to the names of what it makes, which no two runs may make at a time.
        left: from a piece to what is left of it, whoever did the rest; the piece itself where all is left.
    """

    ledger: Ledger
    names: Callable[[Any], Iterable[str]]
    left: Callable[[Any], Sequence[Any]]


class Sharing:
    """The pieces that are left of the work of this run.

    Args:
        ledger: the records of the folder.
        work: the pieces, in the order in which they are begun.
        terms: how they are shared; None for work that is not.
        skip: told the cost of what turns out to be done by others.
    """

    def __init__(
        self, ledger: Ledger, work: Iterable[Stacked], terms: Terms | None, skip: Callable[[float], None]
    ) -> None:
        self.ledger, self.terms, self.skip = ledger, terms, skip
        self.claims = Claims(ledger.folder / CLAIMS)
        self.waiting = list(work)
        self.begun = 0
        self._told = False

    @property
    def left(self) -> int:
        """Pieces that are begun or wait."""
        return len(self.waiting) + self.begun

    def next(self) -> Stacked | None:
        """A piece that is now ours alone; None where others are at all that is left, or nothing is."""
        place = 0
        while place < len(self.waiting):
            piece = self.waiting[place]
            names = self._names(piece)
            if not self.claims.take(names):
                place += 1
                continue
            found = self._still_left(piece)
            if {name for other in found for name in self._names(other)} == set(names):
                self.waiting.pop(place)
                self.begun += 1
                return piece
            self.claims.drop(names)
            self.waiting[place : place + 1] = found
            self.skip(piece.cost - sum(other.cost for other in found))
        if self.waiting and not self.begun and not self._told:
            text = f"Another run on {self.ledger.folder} is at the rest of this work; waiting for it."
            tqdm.write(text, file=sys.stderr)
            self._told = True
        return None

    def done(self, piece: Stacked) -> None:
        """Give back a piece whose records are written."""
        self.begun -= 1
        self.claims.drop(self._names(piece))

    def wait(self) -> None:
        """Until it is worth while to look again."""
        time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Give everything back."""
        self.claims.close()

    def _names(self, piece: Stacked) -> list[str]:
        return [] if self.terms is None else list(self.terms.names(piece))

    def _still_left(self, piece: Stacked) -> Sequence[Stacked]:
        """The piece, or what is left of it where another run has written records."""
        self.ledger.refresh()
        return [piece] if self.terms is None or not self.ledger.shared else self.terms.left(piece)
