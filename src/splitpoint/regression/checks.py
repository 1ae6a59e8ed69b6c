"""What a regression fit finds out about its intervals and scores, on rows that they were not fitted to."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.checks import Check
from splitpoint.conformal import rows_for
from splitpoint.errors import DataError
from splitpoint.metrics import spearman

PARTS, ROWS_OF_PART = 3, 20
"""Parts of equal size that rows are split into by the width of their intervals, and fewest rows of a part."""

ERRORS, SHORT = 3.0, 0.05
"""Coverage fails where it is this many standard errors and this much more below its level."""

NOISE, FLAT = 0.9, 0.1
"""Share of the spread of targets that is noise, and rank correlation of score and error, where `total` says nothing."""

FEWEST = 50
"""Rows below which nothing is said of rank correlations."""


class Judged(NamedTuple):
    """Rows with their intervals around the prediction.

    Attributes:
        down: (R, D) half-widths at the highest level.
        up: (R, D).
        residual: (R, D), NaN where there is none.
        rows: what kind of rows they are, for people.
    """

    down: Tensor
    up: Tensor
    residual: Tensor
    rows: str


def sides(table: Table, level: float) -> Check:
    """Whether there are residuals enough on each side for a quantile at the level."""
    residual = table.column("residual")
    fewest = int(torch.stack([(residual < 0).sum(0), (residual > 0).sum(0)]).min())
    needed, name = rows_for(level), "rows of a side"
    if fewest >= needed or not bool(residual.nan_to_num().any()):
        return Check(name, fewest, "ok", f"at least {needed} are needed at level {level:g}.")
    advice = (
        f"{fewest} residuals on one side are too few for a quantile at level {level:g}, which needs {needed}; give "
        "more rows, or a lower confidence_level."
    )
    return Check(name, fewest, "warn", advice)


def coverage(judged: Judged, level: float) -> Check:
    """The lowest coverage among rows with narrow, middling and wide intervals, over all outputs."""
    lowest, count, name = math.inf, 0, "coverage"
    for down, up, residual in zip(judged.down.T, judged.up.T, judged.residual.T, strict=True):
        known = ~residual.isnan()
        inside = ((residual >= -down) & (residual <= up))[known].double()
        parts = PARTS if len(inside) >= PARTS * ROWS_OF_PART else 1
        for part in inside[(down + up)[known].argsort()].chunk(parts):
            if len(part) and float(part.mean()) < lowest:
                lowest, count = float(part.mean()), len(part)
    if not count:
        return Check(name, math.nan, "unknown", "no rows to judge intervals by.")
    error = math.sqrt(level * (1 - level) / count)
    if lowest < level - ERRORS * error - SHORT:
        advice = (
            f"intervals at level {level:g} hold only {lowest:.0%} of some third of the {judged.rows} rows; look for "
            "groups of rows or outliers, give more rows, or calibration data."
        )
        return Check(name, lowest, "warn", advice)
    return Check(name, lowest, "ok", f"of {judged.rows} rows at level {level:g}, in the worst third by width.")


def ranking(judged: Judged, output: Tensor) -> Check:
    """Rank correlation of the interval's width with the size of the error, the best over all outputs.

    Args:
        judged: rows that heads were not trained on.
        output: (n, D) answers of the network, for the spread of the targets.
    """
    name, found, noise = "ranking of errors", -math.inf, 1.0
    for place, residual in enumerate(judged.residual.T):
        known = ~residual.isnan()
        if int(known.sum()) < FEWEST:
            continue
        own = residual[known].double()
        wide = (judged.down + judged.up)[known, place]
        found = max(found, spearman(wide, own.abs()))
        spread = own.var() + output[:, place].double().var()
        noise = min(noise, float(own.var() / spread.clamp(min=1e-300)))
    if not math.isfinite(found):
        return Check(name, math.nan, "unknown", f"it takes {FEWEST} rows and intervals of several widths.")
    if noise > NOISE and found + 2 / math.sqrt(len(judged.residual)) < FLAT:
        advice = (
            f"the network explains {1 - noise:.0%} of its targets and no score tells larger errors from smaller ones; "
            "use `total` for nothing but inputs that are far from the data."
        )
        return Check(name, found, "warn", advice)
    return Check(name, found, "ok", f"rank correlation of width and error on {judged.rows} rows.")


def every_output(table: Table) -> None:
    """Refuses rows of which an output has no target."""
    seen = torch.zeros(table.width("residual"), dtype=torch.bool)
    for part in table.slices():
        seen |= ~part["residual"].isnan().all(0)
    if not seen.all():
        raise DataError(
            f"Expected targets for every output, but got none for output {(~seen).nonzero()[0].item()}; "
            "leave that output out of the model, or give it targets."
        )
