"""What a fit finds out about its rows, whatever the task: whether they vary, and whether calibration rows are fresh."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.checks import Check
from splitpoint.recording import Recording
from splitpoint.tasks import ColumnName, Rows

LOOKED_AT, NUMBERS, FEWEST = 10_000, 2**25, 256
"""Most rows that a check looks at, and most numbers of them, but so many rows even where each has more."""

STUCK = 0.95
"""Share of features that never move above which the layer is hardly in use."""

ROWS_PER_FEATURE = 0.25
"""Rows for each feature below which distances in the space of the features mean little."""

KEYS, GRID = 4, 1e-3
"""Numbers that a row is recognised by, and the grid, in deviations, on which they count as equal."""

TWINS = 0.02
"""Share of calibration rows among the training rows, above what chance explains, that is too much."""


def row_checks(recording: Recording, calibration: Recording | None) -> tuple[Check, ...]:
    """Whether features vary, whether there are enough rows for them, and whether calibration rows are fresh."""
    own = (moving(recording.table), *inputs_read(recording))
    return own if calibration is None else (*own, fresh(recording, calibration))


def some(table: Table, most: int = LOOKED_AT) -> Rows:
    """The first rows of a table."""
    width = sum(table.width(name) for name in table.columns)
    return next(table.slices(min(most, table.rows, max(FEWEST, NUMBERS // width))))


def moving(table: Table) -> Check:
    """How many features vary at all, and how many rows there are for each."""
    features = some(table)["features"]
    stuck = float((features == features[:1]).all(0).double().mean())
    live = max(1, round((1 - stuck) * features.shape[1]))
    name, share = "features", 1 - stuck
    if stuck > STUCK:
        advice = f"{stuck:.0%} of the features are the same for every row; choose another layer, or check the inputs."
        return Check(name, share, "warn", advice)
    if table.rows < ROWS_PER_FEATURE * live:
        advice = (
            f"{table.rows} rows are few for {live} features, so that distances tell little; give more rows, or a layer "
            "with fewer features."
        )
        return Check(name, share, "warn", advice)
    return Check(name, share, "ok", f"{live} of {features.shape[1]} features vary, over {table.rows} rows.")


def inputs_read(recording: Recording) -> tuple[Check, ...]:
    """A check that fails where the output depends on an input that nothing which is read depends on."""
    if not recording.unseen or recording.tap is None:
        return ()
    names, own = ", ".join(recording.unseen), "s" if len(recording.unseen) == 1 else ""
    advice = (
        f"{names} move{own} the model's output, but not the features that are read ({recording.tap.label}), so that no "
        "score sees it; name the last layer of every branch, such as layer={'image': ..., 'text': ...}."
    )
    return (Check("inputs", float(len(recording.unseen)), "warn", advice),)


def fresh(recording: Recording, calibration: Recording) -> Check:
    """Share of calibration rows that are training rows too: the same features, answer and target.

    Sets hold rows twice, so that some calibration rows have a twin by chance: as large a share as that of the training
    rows with a twin among themselves.
    """
    name, answers = "calibration rows", recording.task.answers
    target: ColumnName = "residual" if answers == "output" else "label"
    scales = _Keys(recording.table, answers, target)
    known, asked = scales.of(recording.table), scales.of(calibration.table)
    values, counts = known.unique(return_counts=True)
    by_chance = float(counts[counts > 1].sum()) / len(known)
    share = float(torch.isin(asked, values).double().mean())
    error = math.sqrt(by_chance * (1 - by_chance) / len(asked))
    if share > by_chance + 3 * error + TWINS:
        advice = (
            f"{share:.0%} of the calibration rows are training rows too, on which the network looks better than it is; "
            "pass rows that it was not trained on."
        )
        return Check(name, share, "warn", advice)
    return Check(name, share, "ok", "no more of them are training rows than rows that are there twice explain.")


class _Keys:
    """Rows recognised by a few random projections, rounded: other batches change the last bits of features.

    Args:
        table: rows that set the scales.
        answers: column of the outputs.
        target: column of what belongs to the target.
    """

    def __init__(self, table: Table, answers: ColumnName, target: ColumnName) -> None:
        self.columns: tuple[ColumnName, ...] = ("features", answers, target)
        values = self._joined(some(table))
        self.center, spread = values.mean(0), values.std(0, correction=0)
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(values.shape[1], KEYS, generator=generator, dtype=torch.float64)
        self.directions = directions / torch.where(spread > 0, spread, 1.0)[:, None] / values.shape[1] ** 0.5
        self.factors = torch.randint(1, 2**40, (KEYS,), generator=generator) * 2 + 1

    def of(self, table: Table) -> Tensor:
        """(n,) integers, equal for equal rows."""
        found = []
        for part in table.slices():
            keys = ((self._joined(part) - self.center) @ self.directions / GRID).round().long()
            found.append((keys * self.factors).sum(1))
        return torch.cat(found)

    def _joined(self, rows: Rows) -> Tensor:
        return torch.cat([rows[name].double().nan_to_num() for name in self.columns], 1)
