"""Training a network for maps once: stopped early by held-out images, found again by its settings, and resumed."""

from __future__ import annotations

import math
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batches import Batch
from splitpoint.bench.checkpoints import Checkpoint, Log, Stored
from splitpoint.bench.training import LAYOUT
from splitpoint.datasets.image_set import in_unit_range
from splitpoint.datasets.scenes import SceneSet
from splitpoint.errors import SettingsError
from splitpoint.files import model_fingerprint
from splitpoint.networks import Prepared, build, seeded
from splitpoint.networks.stack import ListedStack

BRIGHTNESS = 0.2
"""Largest relative change of the brightness of a training image."""

HELD_OUT_BATCH = 32


@dataclass(frozen=True)
class MapSchedule:
    """How a network for maps is trained: Adam, images mirrored and made brighter or darker at random, early stopping.

    Attributes:
        epochs: passes over the images at most; None where `iterations` are given.
        learning_rate: the highest.
        batch_size: images of a step.
        rise: share of the training in which the rate rises linearly, to fall to zero linearly; 0 for a constant rate.
        patience: epochs without a lower loss on the held-out images after which the training ends. The weights of the
            lowest such loss are kept.
        iterations: steps in place of `epochs`, rounded up to whole passes.
    """

    epochs: int | None
    learning_rate: float
    batch_size: int = 16
    rise: float = 0.1
    patience: int = 10
    iterations: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.iterations is None):
            raise SettingsError(f"Expected either epochs or iterations, but got {self.epochs} and {self.iterations}.")
        if min(self.epochs or self.iterations or 0, self.patience) < 1 or self.batch_size < 2:
            raise SettingsError(
                "Expected at least one epoch or iteration, patience >= 1 and batch_size >= 2, but got "
                f"{self.epochs or self.iterations}, {self.patience} and {self.batch_size}."
            )
        if not (0 < self.learning_rate < math.inf and 0 <= self.rise < 1):
            raise SettingsError(
                f"Expected learning_rate > 0 and rise in [0, 1), but got {self.learning_rate} and {self.rise}."
            )

    def passes(self, steps: int) -> int:
        """Epochs when one has that many steps."""
        return self.epochs or math.ceil((self.iterations or 0) / steps)

    def rate(self, part: float) -> float:
        """Learning rate when a share `part` of the training is done."""
        if not self.rise:
            return self.learning_rate
        return self.learning_rate * min(part / self.rise, (1 - part) / (1 - self.rise))


class Parts(NamedTuple):
    """Images that a network learns from, and those whose loss says when to stop."""

    train: SceneSet
    held_out: SceneSet


@dataclass(frozen=True)
class MapTraining:
    """One training and its files, which are named after what it depends on: settings, first weights and images.

    State is kept after every epoch, whole or not at all, so that a training that was killed goes on after its last
    whole epoch and ends in the same weights as one that was not, on a CPU with the same number of threads.

    Attributes:
        prepared: the network and its loss.
        parts: the images.
        schedule: of the training.
        seed: of the initial weights, the order of the images and their augmentation.
        cache: folder of the files.
        key: what else tells this training from others, as JSON; ``network`` is its name for people, ``loss`` says
            what it learns.
        device: where the network is trained and stays.
    """

    prepared: Prepared
    parts: Parts
    schedule: MapSchedule
    seed: int
    cache: Path
    key: Mapping[str, Any]
    device: str = "cpu"

    def network(self, progress: bool = True) -> nn.Module:
        """The trained network on its device, in eval mode and frozen; `progress` shows a bar while it is trained."""
        with torch.inference_mode(False), torch.enable_grad():
            network, found = self._untrained().to(self.device), self._checkpoint.weights()
            network.load_state_dict(self._train(network, progress) if found is None else found.tensors)
        return network.eval().requires_grad_(False)

    def log(self) -> Log:
        """Loss on training and held-out images and CPU seconds of every epoch; empty where it is not finished."""
        found = self._checkpoint.weights()
        return [] if found is None else found.log

    def _untrained(self) -> nn.Module:
        network = build(self.prepared.factory, self.seed)
        network.to(memory_format=LAYOUT)  # type: ignore[call-overload]  # which the stubs leave out
        return network

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        settings = {
            "key": dict(self.key),
            "data": self.parts.train.name,
            "images": [part.digest() for part in self.parts],
            "schedule": asdict(self.schedule),
            "seed": self.seed,
            "start": model_fingerprint(self._untrained()),
        }
        name = f"{self.parts.train.name}-{self.key.get('network', 'network')}-{self.key.get('loss', 'loss')}"
        return Checkpoint.of(self.cache, re.sub(r"[^\w.-]+", "_", name), settings)

    def _train(self, network: nn.Module, progress: bool) -> dict[str, Tensor]:
        checkpoint, stack = self._checkpoint, ListedStack([network])
        checkpoint.prepare()
        optimiser = torch.optim.Adam(stack.parameters(), self.schedule.learning_rate)
        log, best = _resume(stack, optimiser, checkpoint.state())
        steps = len(self._batches(torch.arange(len(self.parts.train))))
        epochs = self.schedule.passes(steps)
        with tqdm(total=epochs, initial=len(log), disable=not progress, dynamic_ncols=True) as shown:
            shown.set_description(checkpoint.path.stem, refresh=False)
            while len(log) < epochs and not self._stopped(log):
                began, epoch = time.process_time(), len(log)
                loss = self._epoch(stack.train(), optimiser, epoch, epochs)
                held_out = self._held_out(stack.eval())
                if not math.isfinite(loss):
                    raise SettingsError(f"Expected a finite loss, but epoch {epoch + 1} gave {loss}; lower the rate.")
                seconds = time.process_time() - began
                log.append({"epoch": epoch + 1, "loss": loss, "held_out": held_out, "cpu_seconds": seconds})
                if _best(log) == epoch:
                    best = {name: value.detach().clone() for name, value in stack.members[0].state_dict().items()}
                checkpoint.keep(_state(stack, optimiser, best), log)
                shown.update()
        checkpoint.finish(best, log)
        return best

    def _stopped(self, log: Log) -> bool:
        return bool(log) and len(log) - 1 - _best(log) >= self.schedule.patience

    def _batches(self, rows: Tensor) -> list[Tensor]:
        """The rows in parts; a single one at the end is left out, since batch norm cannot learn from it."""
        return [part for part in rows.split(self.schedule.batch_size) if len(part) > 1]

    def _epoch(self, stack: ListedStack, optimiser: torch.optim.Optimizer, epoch: int, epochs: int) -> float:
        """One pass; returns the mean loss."""
        draw, train = zlib.crc32(f"{self.seed} {epoch}".encode()), self.parts.train
        generator = torch.Generator().manual_seed(draw)
        batches = self._batches(torch.randperm(len(train), generator=generator))
        total = torch.zeros((), device=self.device)
        with seeded(draw):
            for number, places in enumerate(batches):
                part = (epoch + number / len(batches)) / epochs
                for group in optimiser.param_groups:
                    group["lr"] = self.schedule.rate(part)
                images, depth = augmented(*read(train, places), generator)
                optimiser.zero_grad()
                loss = self._loss(stack, images, depth, part)
                loss.backward()
                optimiser.step()
                total += len(places) * loss.detach()
        return float(total) / sum(map(len, batches))

    @torch.no_grad()
    def _held_out(self, stack: ListedStack) -> float:
        """Mean loss of the held-out images as they are."""
        part, total = self.parts.held_out, 0.0
        with seeded(self.seed):
            for places in torch.arange(len(part)).split(HELD_OUT_BATCH):
                total += len(places) * float(self._loss(stack, *read(part, places), 1.0))
        return total / len(part)

    def _loss(self, stack: ListedStack, images: Tensor, depth: Tensor, part: float) -> Tensor:
        moved = images.to(self.device, memory_format=LAYOUT)
        target = self.prepared.read(depth.to(self.device)[None, None])[0]
        return self.prepared.loss(stack, Batch((moved[None],), {}, target), part).squeeze(0)


def read(scenes: SceneSet, places: Tensor) -> tuple[Tensor, Tensor]:
    """Images (B, 3, H, W) in [0, 1] and targets (B, 1, H, W) at these places."""
    return in_unit_range(scenes.pixels(places)), scenes.targets(places)


def augmented(images: Tensor, depth: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (B, 3, H, W) in [0, 1] and maps (B, 1, H, W): half of them mirrored, all a little brighter or darker."""
    mirrored, light = torch.rand(2, len(images), 1, 1, 1, generator=generator).unbind()
    images, depth = (torch.where(mirrored < 0.5, part.flip(3), part) for part in (images, depth))
    return (images * (1 + BRIGHTNESS * (2 * light - 1))).clamp(0, 1), depth


def _best(log: Log) -> int:
    """Place of the epoch with the lowest loss on the held-out images; the first one where none is finite."""
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
