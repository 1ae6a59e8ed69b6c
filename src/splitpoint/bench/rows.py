"""A trained classifier as recorded rows: its pictures run through it once, and every post-hoc method starts from there.

A row holds the pooled features of some stages of the network and the input of its last layer. What follows that input,
one linear layer, is the `Tail`: a small network on rows that gives the logits of the whole one.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from splitpoint.batches import placement
from splitpoint.errors import SettingsError
from splitpoint.features import Tap
from splitpoint.files import drop_stale_drafts, model_fingerprint, replacing, text_digest, write_text
from splitpoint.hooks import INPUT
from splitpoint.layout import Layout


class Tail(nn.Module):
    """The last layer of a network on recorded rows (N, W), whose last numbers are its input.

    Attributes:
        last: the layer.
    """

    def __init__(self, last: nn.Linear) -> None:
        super().__init__()
        self.last = last

    def forward(self, rows: Tensor) -> Tensor:
        """Logits (N, K)."""
        return self.last(rows[:, -self.last.in_features :])  # type: ignore[no-any-return]


def whole_row(rows: Tensor) -> Tensor:
    """Features of all stages and of the last layer, as a `layer` of a `Tail`."""
    return rows


@dataclass(frozen=True)
class Recorder:
    """Runs a network over pictures and keeps a row for each.

    Rows are stored under the fingerprint of the network and of the pictures, and not made again where they are there.
    Pictures go to the device of the network, and rows come back to the CPU: post-hoc methods are fitted there, on rows
    and a copy of the last layer, wherever the network is.

    Attributes:
        network: trained, with a linear layer at its end; on any device.
        stages: names of the layers whose pooled features are kept beside the input of the last one.
        cache: folder of the rows of all networks.
    """

    network: nn.Module
    stages: tuple[str, ...]
    cache: Path

    @cached_property
    def folder(self) -> Path:
        """Where the rows of this network are."""
        return self.cache / text_digest(f"{model_fingerprint(self.network)} {self.stages}")

    @property
    def last(self) -> tuple[str, nn.Linear]:
        """Name and module of the last linear layer."""
        linears = [(name, part) for name, part in self.network.named_modules() if isinstance(part, nn.Linear)]
        if not linears:
            raise SettingsError("Expected a network that ends in a linear layer, but it has none.")
        return linears[-1]

    @property
    def tail(self) -> Tail:
        """What the network does with a row, on the CPU."""
        return Tail(copy.deepcopy(self.last[1]).cpu())

    def rows(self, name: str, digest: str, pictures: Iterable[Tensor | tuple[Tensor, Tensor]], count: int) -> Recorded:
        """Rows of pictures.

        Args:
            name: of the pictures, for people.
            digest: of everything that tells them from others.
            pictures: batches, with or without labels.
            count: how many pictures there are.
        """
        path, clock = (self.folder / f"{name}-{digest}{ending}" for ending in (".npy", ".seconds"))
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            for target in (path, clock):
                drop_stale_drafts(target)
            with replacing(path) as draft:
                seconds = self._write(draft, pictures, count)
                write_text(clock, repr(seconds))
        stored = np.load(path, mmap_mode="c")
        return Recorded(torch.from_numpy(stored), float(clock.read_text(encoding="utf-8")))

    def _write(self, path: Path, pictures: Iterable[Tensor | tuple[Tensor, Tensor]], count: int) -> float:
        """Write the rows to a file as they come, and return the CPU seconds of the network."""
        tap = Tap(self.network, (*self.stages, self.last[0] + INPUT), None, "as recorded")
        layout = Layout((False,) * len(tap.names), False, 1)
        device = placement(self.network)[0]
        stored, start, seconds = None, 0, 0.0
        for batch in pictures:
            began = time.process_time()
            logits, features = tap((batch if isinstance(batch, Tensor) else batch[0]).to(device))
            rows = layout.features(features).cpu()
            seconds += time.process_time() - began
            if stored is None:
                if not torch.allclose(self.tail(rows), logits.cpu(), rtol=1e-3, atol=1e-3):
                    raise SettingsError("Expected a network whose output is that of its last linear layer.")
                stored = np.lib.format.open_memmap(path, "w+", np.float32, (count, rows.shape[1]))
            stored[start : start + len(rows)] = rows.numpy()
            start += len(rows)
        if stored is None or start != count:
            raise SettingsError(f"Expected {count} pictures to record, but got {start}.")
        stored.flush()
        return seconds


@dataclass(frozen=True)
class Recorded:
    """Rows (N, W) of pictures and the CPU seconds that the network took for all of them.

    The rows lie in a file that is mapped into memory.
    """

    rows: Tensor
    seconds: float
