"""Splitting images taken one after the other: neighbours show the same scene, so blocks of them stay whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from splitpoint.errors import DataError, SettingsError


def blocks(count: int, size: int) -> Tensor:
    """Numbers of blocks of `size` consecutive images: int64 (count,), ``0 ... 0, 1 ... 1, ...``."""
    if count < 0 or size < 1:
        raise SettingsError(f"Expected a count of 0 or more and a size of at least 1, but got {count} and {size}.")
    return torch.arange(count) // size


def runs(numbers: Tensor) -> Tensor:
    """Numbers of the runs of consecutive `numbers`, (N,) ascending whole ones: int64 (N,).

    >>> runs(torch.tensor([2, 3, 4, 9, 10, 20])).tolist()
    [0, 0, 0, 1, 1, 2]
    """
    breaks = torch.ones(len(numbers), dtype=torch.int64)
    breaks[1:] = (numbers.diff() != 1).long()
    return breaks.cumsum(0) - 1


def split_blocks(groups: Tensor, shares: Sequence[float], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Split the images of `groups`, int64 (N,), so that images of one group stay together.

    `shares` are the shares of the images that the parts should have, and sum to 1. The groups are shuffled by
    `generator` and dealt to the parts one after the other; a part ends where the number of images dealt so far comes
    nearest to what the shares say, so while groups are small no end is off by more than half a group.

    Returns:
        Places of the images of every part, ascending, int64; each has one group at least.
    """
    if len(shares) < 1 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise SettingsError(f"Expected shares above 0 that sum to 1, but got {list(shares)}.")
    if groups.ndim != 1 or groups.dtype != torch.int64:
        raise SettingsError(
            f"Expected groups as one row of whole numbers, but got {groups.dtype} of shape {tuple(groups.shape)}."
        )
    _, group, sizes = groups.unique(return_inverse=True, return_counts=True)
    if len(sizes) < len(shares):
        raise DataError(
            f"Expected a group for each of {len(shares)} parts, but {len(groups)} images are of {len(sizes)} groups; "
            "images of one group stay together."
        )
    order = torch.randperm(len(sizes), generator=generator)
    ends = _ends(sizes[order], torch.tensor(shares, dtype=torch.float64))
    part = torch.empty_like(order)
    part[order] = torch.bucketize(torch.arange(len(order)), ends, right=True)
    return tuple((part[group] == number).nonzero()[:, 0] for number in range(len(shares)))


def _ends(sizes: Tensor, shares: Tensor) -> Tensor:
    """How many of the groups of these `sizes` lie in the first part, in the first two, and so on."""
    reached = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).double()
    wanted = shares.cumsum(0) * reached[-1]
    ends = (reached[:, None] - wanted).abs().argmin(0)
    parts = len(shares)
    for place in range(parts):  # every part gets a group, and leaves one for each part to come
        least = 1 + (int(ends[place - 1]) if place else 0)
        ends[place] = min(max(int(ends[place]), least), len(sizes) - (parts - 1 - place))
    ends[-1] = len(sizes)
    return ends
