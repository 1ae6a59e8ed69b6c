"""Training a network once: stopped early by held-out rows, found again by its settings, and resumed."""

from __future__ import annotations

import math
import re
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batches import Batch
from splitpoint.bench.checkpoints import Checkpoint, Log, Stored
from splitpoint.bench.training import LAYOUT
from splitpoint.errors import SettingsError
from splitpoint.files import model_fingerprint
from splitpoint.networks import Prepared, build, seeded
from splitpoint.networks.stack import ListedStack


@dataclass(frozen=True)
class EarlyStopping(ABC):
    """One training by Adam and its files, which are named after what it depends on: settings, first weights and rows.

    State is kept after epochs, whole or not at all, so that a training that was killed goes on after the last one that
    was kept and ends in the same weights as one that was not, on a CPU with the same number of threads.

    Attributes:
        prepared: the network and its loss.
        seed: of the initial weights, the order of the rows and what else is random.
        cache: folder of the files.
        key: what else tells this training from others, as JSON; ``network`` is its name for people, ``loss`` says
            what it learns.
        device: where the network is trained and stays.
    """

    least_seconds: ClassVar[float] = 0.0
    """Between two states that are kept; writing one may take longer than an epoch of a small network."""

    prepared: Prepared
    seed: int
    cache: Path
    key: Mapping[str, Any]
    device: str

    @property
    @abstractmethod
    def _name(self) -> str:
        """Of the rows, for people."""

    @property
    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """What tells schedule and rows from others, as JSON."""

    @property
    @abstractmethod
    def _rows(self) -> int:
        """Training rows."""

    @property
    @abstractmethod
    def _batch_size(self) -> int:
        """Rows of a step."""

    @property
    @abstractmethod
    def _patience(self) -> int:
        """Epochs without a lower loss on the held-out rows after which the training ends."""

    @abstractmethod
    def _passes(self, steps: int) -> int:
        """Epochs at most when one has that many steps."""

    @abstractmethod
    def _rate(self, part: float, log: Log) -> float:
        """Learning rate when a share `part` of the training is done and `log` tells of the epochs before."""

    @abstractmethod
    def _train_batch(self, places: Tensor, generator: torch.Generator) -> Batch:
        """The training rows at these places, changed at random where that is wanted."""

    @abstractmethod
    def _held_out_batches(self) -> Iterator[tuple[int, Batch]]:
        """The held-out rows in batches, each with its size."""

    def network(self, progress: bool = True) -> nn.Module:
        """The trained network on its device, in eval mode and frozen; `progress` shows a bar while it is trained."""
        with torch.inference_mode(False), torch.enable_grad():
            network, found = self._untrained().to(self.device), self._checkpoint.weights()
            network.load_state_dict(self._train(network, progress) if found is None else found.tensors)
        return network.eval().requires_grad_(False)

    def log(self) -> Log:
        """Loss on training and held-out rows and CPU seconds of every epoch; empty where it is not finished."""
        found = self._checkpoint.weights()
        return [] if found is None else found.log

    def _untrained(self) -> nn.Module:
        network = build(self.prepared.factory, self.seed)
        network.to(memory_format=LAYOUT)  # type: ignore[call-overload]  # which the stubs leave out
        return network

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        start = model_fingerprint(self._untrained())
        settings = {"key": dict(self.key), "data": self._name, "seed": self.seed, "start": start, **self._settings}
        name = f"{self._name}-{self.key.get('network', 'network')}-{self.key.get('loss', 'loss')}"
        return Checkpoint.of(self.cache, re.sub(r"[^\w.-]+", "_", name), settings)

    def _train(self, network: nn.Module, progress: bool) -> dict[str, Tensor]:
        checkpoint, stack = self._checkpoint, ListedStack([network])
        checkpoint.prepare()
        optimiser = torch.optim.Adam(stack.parameters(), self._rate(0.0, []))
        log, best = _resume(stack, optimiser, checkpoint.state())
        epochs, kept = self._passes(len(self._batches(torch.arange(self._rows)))), time.monotonic()
        with tqdm(total=epochs, initial=len(log), disable=not progress, dynamic_ncols=True) as shown:
            shown.set_description(checkpoint.path.stem, refresh=False)
            while len(log) < epochs and not self._stopped(log):
                began, epoch = time.process_time(), len(log)
                loss = self._epoch(stack.train(), optimiser, log, epochs)
                held_out = self._held_out(stack.eval())
                if not math.isfinite(loss):
                    raise SettingsError(f"Expected a finite loss, but epoch {epoch + 1} gave {loss}; lower the rate.")
                seconds = time.process_time() - began
                log.append({"epoch": epoch + 1, "loss": loss, "held_out": held_out, "cpu_seconds": seconds})
                if best_epoch(log) == epoch:
                    best = {name: value.detach().clone() for name, value in stack.members[0].state_dict().items()}
                if time.monotonic() - kept >= self.least_seconds:
                    checkpoint.keep(_state(stack, optimiser, best), log)
                    kept = time.monotonic()
                shown.update()
        checkpoint.finish(best, log)
        return best

    def _stopped(self, log: Log) -> bool:
        return bool(log) and len(log) - 1 - best_epoch(log) >= self._patience

    def _batches(self, rows: Tensor) -> list[Tensor]:
        """The rows in parts; a single one at the end is left out, since batch norm cannot learn from it."""
        return [part for part in rows.split(self._batch_size) if len(part) > 1]

    def _epoch(self, stack: ListedStack, optimiser: torch.optim.Optimizer, log: Log, epochs: int) -> float:
        """The pass that comes after those of the log; returns the mean loss."""
        epoch = len(log)
        draw = zlib.crc32(f"{self.seed} {epoch}".encode())
        generator = torch.Generator().manual_seed(draw)
        batches = self._batches(torch.randperm(self._rows, generator=generator))
        total = torch.zeros((), device=self.device)
        with seeded(draw):
            for number, places in enumerate(batches):
                part = (epoch + number / len(batches)) / epochs
                for group in optimiser.param_groups:
                    group["lr"] = self._rate(part, log)
                batch = self._train_batch(places, generator)
                optimiser.zero_grad()
                loss = self._loss(stack, batch, part)
                loss.backward()
                optimiser.step()
                total += len(places) * loss.detach()
        return float(total) / sum(map(len, batches))

    @torch.no_grad()
    def _held_out(self, stack: ListedStack) -> float:
        """Mean loss of the held-out rows as they are."""
        total = rows = 0.0
        with seeded(self.seed):
            for count, batch in self._held_out_batches():
                total += count * float(self._loss(stack, batch, 1.0))
                rows += count
        return total / rows

    def _loss(self, stack: ListedStack, batch: Batch, part: float) -> Tensor:
        """Mean loss of a batch of rows when a share `part` of the training is done."""
        assert batch.target is not None
        target = self.prepared.read(batch.target.to(self.device)[None, None])[0]
        moved = tuple(_laid_out(given.to(self.device))[None] for given in batch.args)
        return self.prepared.loss(stack, Batch(moved, {}, target), part).squeeze(0)


def _laid_out(given: Tensor) -> Tensor:
    """Images and maps in the layout in which convolutions are fast."""
    return given.contiguous(memory_format=LAYOUT) if given.dim() == 4 else given


def best_epoch(log: Log) -> int:
    """Place of the epoch with the lowest loss on the held-out rows; the first one where none is finite."""
    return min(range(len(log)), key=lambda place: (not math.isfinite(log[place]["held_out"]), log[place]["held_out"]))


def _state(stack: nn.Module, optimiser: torch.optim.Optimizer, best: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a training needs to go on: weights, those of the best epoch, and the moments of Adam."""
    found = {f"network/{name}": value for name, value in stack.state_dict().items()}
    found |= {f"best/{name}": value for name, value in best.items()}
    moments = optimiser.state_dict()["state"]
    return found | {f"adam/{place}/{name}": value for place, own in moments.items() for name, value in own.items()}


def _resume(stack: nn.Module, optimiser: torch.optim.Optimizer, state: Stored | None) -> tuple[Log, dict[str, Tensor]]:
    """Put network and optimiser where the last whole epoch left them; returns the log so far and the best weights."""
    if state is None:
        return [], {}
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "best": {}, "adam": {}}
    for name, value in state.tensors.items():
        kind, _, rest = name.partition("/")
        parts[kind][rest] = value
    stack.load_state_dict(parts["network"])
    parameters, moments = list(stack.parameters()), dict[int, dict[str, Tensor]]()
    for name, value in parts["adam"].items():
        place, _, kind = name.partition("/")
        like = parameters[int(place)]
        alike = value if not value.dim() else torch.empty_like(like, requires_grad=False).copy_(value)
        moments.setdefault(int(place), {})[kind] = alike  # another layout in memory may round otherwise
    optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
    return state.log, parts["best"]
