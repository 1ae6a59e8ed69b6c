"""Rows that belong together: pixels of an image, steps of a sequence, visits of a patient.

Rows of one group are alike, so that what is learned from some of them says too much about the others. Whatever is to
show how new rows will fare leaves out whole groups, and a new group, not a new row, is what compares with those seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from splitpoint.errors import DataError

Groups: TypeAlias = "Tensor | np.ndarray[Any, Any] | Sequence[Any]"
"""One number or name for every row; rows with equal ones belong together."""


def group_ids(groups: Groups) -> Tensor:
    """Numbers (N,) from 0 of the groups that N rows belong to, in ascending order of their names.

    >>> group_ids(["ann", "bob", "ann"])
    tensor([0, 1, 0])
    """
    given = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    if given.ndim != 1:
        raise DataError(
            f"Expected groups as one number or name for each row, (N,), but got shape {given.shape}; flatten them."
        )
    if given.dtype.kind == "f" and np.isnan(given).any():
        raise DataError("Expected a group for every row, but got NaN; give rows without one a number of their own.")
    try:
        return torch.from_numpy(np.unique(given, return_inverse=True)[1].astype(np.int64))
    except TypeError as error:
        raise DataError("Expected groups that are all numbers or all names, but got both; use one kind.") from error


def check_count(groups: Tensor, rows: int, label: str, *, more: bool = False) -> None:
    """Refuse ids (N,) of another number of rows than the data have; `more` says that there may be further rows."""
    if len(groups) != rows:
        least = "at least " if more else ""
        raise DataError(
            f"Expected one group for each row of the {label} data, but got {len(groups)} for {least}{rows} rows; give "
            "as many as there are rows, in the same order."
        )


class Owners(NamedTuple):
    """The groups that some rows belong to.

    Attributes:
        groups: (n,) their numbers.
        shares: (n,) float64 what a row counts where every group counts one: one over the number of its rows.
    """

    groups: Tensor
    shares: Tensor

    @staticmethod
    def of(groups: Tensor) -> Owners:
        """Those of rows with the numbers (n,).

        >>> Owners.of(torch.tensor([0, 1, 1])).shares
        tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
        """
        return Owners(groups, 1 / torch.bincount(groups).double()[groups])

    def at(self, chosen: Tensor) -> Owners:
        """Those of some of the rows, which count what they did."""
        return Owners(self.groups[chosen], self.shares[chosen])


def random_folds(rows: int, folds: int, generator: torch.Generator, groups: Tensor | None = None) -> Tensor:
    """(rows,) number of the fold of every row, drawn at random; those of a group share one.

    Folds of ungrouped rows differ by one row at most. Groups go one after the other, larger ones first, to the fold
    that has the fewest rows so far.
    """
    if groups is None:
        return torch.randperm(rows, generator=generator) % folds
    counts = torch.bincount(groups)
    order = torch.randperm(len(counts), generator=generator)
    order = order[counts[order].sort(descending=True, stable=True).indices]
    filled, fold = [0] * folds, torch.empty_like(counts)
    for group, count in zip(order.tolist(), counts[order].tolist(), strict=True):
        fewest = min(range(folds), key=filled.__getitem__)
        fold[group] = fewest
        filled[fewest] += count
    return fold[groups]


def random_part(rows: int, most: int, generator: torch.Generator, groups: Tensor | None = None) -> Tensor:
    """(rows,) mask of at most so many random rows; of grouped ones, whole groups, at least one where there are two."""
    mask = torch.zeros(rows, dtype=torch.bool)
    if groups is None or most < 1:
        mask[torch.randperm(rows, generator=generator)[:most]] = True
        return mask
    counts = torch.bincount(groups)
    if len(counts) < 2:
        return mask
    order = torch.randperm(len(counts), generator=generator)
    kept = order[counts[order].cumsum(0) <= most]
    return torch.isin(groups, kept if len(kept) else counts.argmin())
