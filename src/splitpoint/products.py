"""Products of maps that lie side by side as channels of one, each worked out at its own resolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from splitpoint.layout import largest, resized

Index = tuple[slice, slice, slice]


class MapProduct:
    """``sum_i up(h_i - center_i) matrix_i``: of maps h_i at the positions of the largest of them.

    Up-sampling is linear and leaves constants alone, so that products of smaller maps are up-sampled in place of the
    maps themselves, with as many channels as the matrix has columns.

    Args:
        parts: maps (N, C_i, *positions).
        center: (C,) for all their channels.
        matrix: (C, K).
    """

    def __init__(self, parts: Sequence[Tensor], center: Tensor, matrix: Tensor) -> None:
        self.shape = largest(parts)
        sizes = [part.shape[1] for part in parts]
        self.fine: list[tuple[Tensor, Tensor, Tensor]] = []
        self.coarse: Tensor | None = None
        for part, middle, own in zip(parts, center[:, None].split(sizes), matrix.split(sizes), strict=True):
            if tuple(part.shape[2:]) == self.shape:
                self.fine.append((part.flatten(2), middle, own.mT.contiguous()))
                continue
            product = (
                (part.flatten(2) - middle).mT @ own
            ).mT  # channels last in memory: up-sampled in a fifth of the time
            more = resized(product.unflatten(2, part.shape[2:]), self.shape).flatten(2)
            self.coarse = more if self.coarse is None else self.coarse.add_(more)

    def at(self, index: Index) -> Tensor:
        """The product (R, K, P) for some rows and positions."""
        found = [torch.matmul(own, part[index] - middle) for part, middle, own in self.fine]
        if self.coarse is not None:
            found.append(self.coarse[index])
        total = found[0]
        for more in found[1:]:
            total = total.add_(more)
        return total
