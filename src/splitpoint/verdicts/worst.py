"""The rows that a predictor gets wrong the most, in its own eyes."""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.verdicts.entries import Classes, Numbers, chosen, joined
from splitpoint.verdicts.judging import short
from splitpoint.verdicts.parts import Part, Table

MOST = 12
"""Rows that are shown."""

LEAST_SIDE = 8
"""Pixels that both sides of an image have at least: smaller arrays are shown as numbers."""


class Worst:
    """Keeps the entries with the largest surprise, and the images they belong to, batch by batch."""

    def __init__(self) -> None:
        self.entries: Numbers | Classes | None = None
        self.images: dict[int, Tensor] = {}

    def add(self, entries: Numbers | Classes, images: Tensor | None, start: int) -> None:
        """Consider a batch, whose first row has the number `start`; `images` (N, C, H, W) are its inputs."""
        found = entries if self.entries is None else joined([self.entries, entries])
        places = surprise(found).nan_to_num(nan=torch.inf).argsort(descending=True, stable=True)[:MOST]
        self.entries = chosen(found, places)
        rows = self.entries.row.tolist()
        if images is not None:
            new = {row: images[row - start].detach().cpu().clone() for row in rows if row >= start}
            self.images = {row: image for row, image in (self.images | new).items() if row in rows}

    def part(self) -> Part:
        """A table of them."""
        assert self.entries is not None
        head, rows = _numbers(self.entries) if isinstance(self.entries, Numbers) else _classes(self.entries)
        images = tuple(_png(self.images[row]) if row in self.images else "" for row in self.entries.row.tolist())
        what = (
            "error over the half of the interval that it is on"
            if isinstance(self.entries, Numbers)
            else ("least probable right answer")
        )
        table = Table("worst", "", head, rows, images if any(images) else ())
        return Part("worst", "Worst rows", f"By {what}; look at them, some may be mislabelled.", tables=(table,))


def surprise(entries: Numbers | Classes) -> Tensor:
    """How unlikely the predictor thought the target: the error over the half-width on its side, or ``-log p``."""
    if isinstance(entries, Classes):
        return -entries.likelihood.clamp(min=torch.finfo(torch.float64).tiny).log()
    up, down = entries.uppers[:, -1] - entries.mean, entries.mean - entries.lowers[:, -1]
    half = torch.where(entries.error > 0, up, down).clamp(min=torch.finfo(torch.float64).tiny)
    return entries.error.abs() / half


def _numbers(entries: Numbers) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    several = bool((entries.channel > 0).any())
    head = ("row", *(("output",) if several else ()), "target", "predicted", "lower", "upper", "total", "error / half")
    columns = [
        entries.target,
        entries.mean,
        entries.lowers[:, -1],
        entries.uppers[:, -1],
        entries.total,
        surprise(entries),
    ]
    lines = []
    for place, row in enumerate(entries.row.tolist()):
        output = (str(int(entries.channel[place])),) if several else ()
        lines.append((str(row), *output, *(short(float(column[place])) for column in columns)))
    return head, tuple(lines)


def _classes(entries: Classes) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    head = ("row", "label", "predicted", "confidence", "p of the label", "total")
    lines = [
        (
            str(row),
            str(int(entries.label[place])),
            str(int(entries.choice[place])),
            short(float(entries.confidence[place])),
            short(float(entries.likelihood[place])),
            short(float(entries.total[place])),
        )
        for place, row in enumerate(entries.row.tolist())
    ]
    return head, tuple(lines)


def images_of(inputs: dict[tuple[object, ...], Tensor]) -> Tensor | None:
    """The input (N, 1 or 3, H, W) that is an image, if one is."""
    for value in inputs.values():
        if value.dim() == 4 and value.shape[1] in (1, 3) and min(value.shape[2:]) >= LEAST_SIDE:
            return value
    return None


def _png(image: Tensor) -> str:
    from splitpoint.bench.drawings import png, shrunk  # drags in the data sets, which tables are spared

    values = image.double().nan_to_num()
    low, high = values.min(), values.max()
    scaled = (values - low) / (high - low) if high > low else torch.zeros_like(values)
    return png(shrunk((255 * scaled).round().byte()))
