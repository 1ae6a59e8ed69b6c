"""Which residuals heads learn from: those of training rows, or of copies of the network that left the rows out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.batches import Data
from splitpoint.checks import Check
from splitpoint.errors import DataError, SplitPointError
from splitpoint.hooks import CALL, find_module
from splitpoint.memorisation import is_large, memorised, memorised_check
from splitpoint.method import GivenRows
from splitpoint.networks.copies import Prepared, groups, obstacle, prepared, refitted
from splitpoint.networks.refit import COPIES, Retrain, reset_copy
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
        blind: whether the features of training rows tell their targets, so that nothing that heads learn of these
            residuals holds for other rows.
        moved: whether features are the network's own input, see `at_input`.
    """

    recording: Recording
    residual: Tensor | None
    checks: tuple[Check, ...]
    blind: bool = False
    moved: bool = False


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
            Learned(own, None, () if self.residuals == "refit" else (memorised(own, part, self.source, before(own)),))
            for own, part in zip(given.rows, data, strict=True)
        ]
        wanted = [number for number, own in enumerate(found) if self._wants(own)]
        ready: dict[int, Prepared] = {}
        owners = given.groups or [None] * len(given.rows)
        for number in wanted:
            budget = math.inf if self.residuals == "refit" else BUDGET
            copied = prepared(found[number].recording, data[number], self.source, budget, owners[number])
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
        new: list[Learned | SplitPointError] = []
        for own, part, out in zip(found, ready, left_out, strict=True):
            recording = at_input(part.recording)
            checks = tuple(_answered(check, out.reached) for check in own.checks)
            missing = recording is None
            new.append(Learned(recording or part.recording, out.rows["residual"], checks, missing, not missing))
        return new


def at_input(recording: Recording) -> Recording | None:
    """The same rows with the network's own input as features; None where it was not read.

    A network that memorised its rows answers nearly with their targets, and its features tell them too. The residuals
    of copies, ``y - copy(x)``, could then be read off the features of training rows, and of no others.
    """
    table, tap = recording.table, recording.tap
    if tap is None or tap.branches or not tap.context or "context" not in table.columns:
        return None
    width = getattr(find_module(tap.model, tap.context[0]), "in_features", None)
    if width is None or CALL in tap.context[0]:
        return None
    context, features = table.column("context"), table.column("features")
    swapped = table.joined({"features": context[:, :width], "context": torch.cat([context[:, width:], features], 1)})
    reason = "the network memorised its rows, so that its features tell targets; its own input does not"
    moved = replace(tap, names=tap.context[:1], context=(*tap.context[1:], *tap.names), reason=reason)
    return replace(recording, table=swapped, tap=moved)


def before(recording: Recording) -> nn.Module | None:
    """A network like that of a recording before it was trained; None where there is none, or its gradients are costly.

    Large networks usually come pretrained: what they were before the first training says nothing of the last one.
    """
    model = None if recording.tap is None else recording.tap.model
    if model is None or is_large(model, recording.layout) or obstacle(model) is not None:
        return None
    return reset_copy(model, 0).eval()


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
    return own._replace(checks=(memorised_check(own.checks[0].value, 0.0, str(reason)),))
