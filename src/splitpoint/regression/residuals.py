"""Which residuals heads learn from: those of training rows, or of copies of the network that left the rows out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from splitpoint.batches import Data
from splitpoint.checks import Check
from splitpoint.errors import DataError, SplitPointError
from splitpoint.memorisation import memorised, memorised_check
from splitpoint.method import GivenRows
from splitpoint.networks.copies import Prepared, groups, prepared, refitted
from splitpoint.networks.refit import COPIES, Retrain
from splitpoint.recording import Recording, Source

BUDGET = 2e10
"""Most multiplications of refitting, see `copies.prepared`, that are done unasked: mostly seconds on one core."""

BETTER = 0.7
"""Error of copies on rows that they left out over that of the network on its own, below which they are not like it."""


class Learned(NamedTuple):
    """What the heads of one network learn from.

    Attributes:
        recording: its rows.
        residual: (n, D) residuals of copies that left the row out; None for those of the network itself.
        checks: what was found out about the network.
    """

    recording: Recording
    residual: Tensor | None
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Chooser:
    """How residuals are chosen.

    Attributes:
        residuals: "auto", "refit", "loo" or "train", see `SplitPointRegressor`.
        retrain: how copies are trained; None for our own way.
        source: how rows are recorded.
    """

    residuals: str
    retrain: Retrain | None
    source: Source

    def learned(self, given: GivenRows) -> list[Learned]:
        """Recordings, residuals and checks of every network; calibration data make up for residuals that are small."""
        if self.residuals != "refit" and given.calibration is not None:
            return [Learned(recording, None, ()) for recording in given.rows]
        data: Sequence[Data | None] = given.data or [None] * len(given.rows)
        found = [
            Learned(own, None, () if self.residuals == "refit" else (memorised(own, part, self.source),))
            for own, part in zip(given.rows, data, strict=True)
        ]
        wanted = [number for number, own in enumerate(found) if self._wants(own)]
        ready: dict[int, Prepared] = {}
        for number in wanted:
            budget = math.inf if self.residuals == "refit" else BUDGET
            copied = prepared(found[number].recording, data[number], self.source, budget)
            if isinstance(copied, Prepared):
                ready[number] = copied
            elif self.residuals == "refit":
                raise copied
            else:
                found[number] = _kept(found[number], copied)
        for group in groups(ready):
            new = self._refitted([found[n] for n in group], [ready[n] for n in group], given, group)
            for number, own in zip(group, new, strict=True):
                found[number] = own if isinstance(own, Learned) else _kept(found[number], own)
        return found

    def _wants(self, own: Learned) -> bool:
        return self.residuals == "refit" or (self.residuals == "auto" and own.checks[0].verdict == "warn")

    def _refitted(
        self, found: Sequence[Learned], ready: Sequence[Prepared], given: GivenRows, numbers: Sequence[int]
    ) -> list[Learned | SplitPointError]:
        """What copies say of networks that are alike, or for each that is not to be refitted, why."""
        seeds = [given.seeds[number] for number in numbers]
        try:
            left_out = refitted(ready, self.source, seeds, self.retrain, given.progress)
            for part, out in zip(ready, left_out, strict=True):
                _check_worse(out.rows["residual"], part.recording.table.column("residual"))
        except SplitPointError as error:
            if len(ready) > 1:  # each by itself, so that one spoils no other
                alone = zip(found, ready, numbers, strict=True)
                return [new for own, part, n in alone for new in self._refitted([own], [part], given, [n])]
            if self.residuals == "refit":
                raise
            return [error]
        return [
            Learned(part.recording, out.rows["residual"], tuple(_answered(c, out.reached) for c in own.checks))
            for own, part, out in zip(found, ready, left_out, strict=True)
        ]


def _check_worse(left_out: Tensor, residual: Tensor) -> None:
    """Refuse copies that are better on rows that they left out than the network is on its own: they are not like it."""
    ratio = (left_out.square().nanmean(0) / residual.square().nanmean(0)).sqrt()
    if bool((ratio < BETTER).all()):
        raise DataError(
            "Expected copies that err at least as much on rows that they left out as the network does on its own, but "
            f"got {float(ratio.max()):.2g} of its error; train the network further, or use residuals='loo'."
        )


def _answered(check: Check, reached: float) -> Check:
    """The check of a network whose rows were answered by copies that left them out."""
    advice = "the network memorised its rows, so the heads learned from copies that left them out"
    if reached < 1:
        advice += (
            f", {round(COPIES * (1 - reached))} of {COPIES} of which do not fit theirs as well as the network does"
        )
    return replace(check, verdict="ok", advice=f"{advice}.")


def _kept(own: Learned, reason: Exception) -> Learned:
    """The same with its own residuals, and the warning that stays."""
    return own._replace(checks=(memorised_check(own.checks[0].value, own.recording.table.rows, str(reason)),))
