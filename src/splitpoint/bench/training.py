"""Training an image classifier once: found again by its settings, and resumed after any interruption."""

from __future__ import annotations

import math
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from splitpoint.batches import placement
from splitpoint.bench.checkpoints import Checkpoint, Log, Stored
from splitpoint.datasets.images import ImageSet
from splitpoint.errors import DataError, SettingsError
from splitpoint.files import model_fingerprint
from splitpoint.networks import Factory, build, seeded

LAYOUT = torch.channels_last
"""Of weights and images in memory; convolutions on a CPU train faster in it than in the plain one."""

PADDING = 4
RISE = 0.3
"""Share of a one-cycle training in which the learning rate rises."""


Loss = Callable[[Tensor, Tensor, float], Tensor]
"""From logits (B, K), labels (B,) and the share of the training that is done to the loss (B,) of every image."""


def cross_entropy(logits: Tensor, labels: Tensor, _part: float) -> Tensor:
    """``-log softmax(logits)`` of the true class; the same all through the training."""
    return F.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class Schedule:
    """How an image classifier is trained: stochastic gradient descent with momentum.

    Attributes:
        epochs: passes over the images.
        learning_rate: the highest.
        batch_size: images of a step.
        momentum: of the optimiser.
        nesterov: whether the momentum looks ahead.
        weight_decay: L2 penalty.
        decay: of the learning rate: "steps" divides it by ten after each of the `milestones`; "one_cycle" lets it
            rise linearly over the first three tenths of the training and then fall linearly to zero.
        milestones: shares of the training.
        augment: whether images are cropped at random from ones with four black pixels around, and half of them
            mirrored; not for digits and letters, whose mirror images mean something else.
    """

    epochs: int
    learning_rate: float
    batch_size: int = 128
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    decay: Literal["steps", "one_cycle"] = "steps"
    milestones: tuple[float, ...] = ()
    augment: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2:
            raise SettingsError(
                f"Expected epochs >= 1 and batch_size >= 2, but got {self.epochs} and {self.batch_size}."
            )
        if not (0 < self.learning_rate < math.inf and 0 <= self.weight_decay < math.inf and 0 <= self.momentum < 1):
            raise SettingsError(
                "Expected learning_rate > 0, weight_decay >= 0 and momentum in [0, 1), but got "
                f"{self.learning_rate}, {self.weight_decay} and {self.momentum}."
            )
        if self.nesterov and not self.momentum:
            raise SettingsError("Expected momentum > 0 for nesterov=True, but got 0; give one or leave the other.")
        if self.decay not in ("steps", "one_cycle"):
            raise SettingsError(f"Expected decay to be 'steps' or 'one_cycle', but got {self.decay!r}.")
        if not all(0 <= milestone <= 1 for milestone in self.milestones):
            raise SettingsError(f"Expected milestones in [0, 1], but got {self.milestones}.")

    def rate(self, part: float) -> float:
        """Learning rate when a share `part` of the training is done."""
        if self.decay == "one_cycle":
            return self.learning_rate * min(part / RISE, (1 - part) / (1 - RISE))
        return float(self.learning_rate * 0.1 ** sum(part >= milestone for milestone in self.milestones))

    def over(self, network: nn.Module) -> torch.optim.SGD:
        """The optimiser of a network."""
        return torch.optim.SGD(
            network.parameters(),
            self.learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


PAPER = Schedule(350, 0.1, milestones=(150 / 350, 250 / 350), augment=True)
"""The paper's: 350 epochs, a tenth of the learning rate after 150 and 250. Batches, weight decay and augmentation,
which it leaves open, are the customary ones."""


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Random crops of images (B, C, H, W) with four black pixels around them, half of them mirrored."""
    count, _, height, width = images.shape
    padded = F.pad(images, (PADDING,) * 4)
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    down, right = torch.randint(2 * PADDING + 1, (2, count), generator=generator)
    cropped = crops[torch.arange(count), :, down, right]
    mirrored = torch.rand(count, generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], cropped.flip(3), cropped)


@dataclass(frozen=True)
class Training:
    """One training and its files, which are named after what it depends on: settings, first weights and images.

    The weights after every epoch are written whole or not at all, together with the momentum of the optimiser, and an
    epoch draws its random numbers from the seed and its own number. So a training that was killed goes on after its
    last whole epoch and ends in the same weights as one that was not, on a CPU with the same number of threads.

    Attributes:
        build: makes the untrained network.
        data: the images.
        schedule: of the training.
        seed: of the initial weights, the order of the images and their augmentation.
        cache: folder of the files.
        key: what else tells this training from others, as JSON; ``network`` is its name for people.
        loss: a named function, see `Loss`; where it is a method, its owner's settings count too.
        device: where the network is trained and stays. Files do not tell it: a network that was trained on one device
            is found on another, and a training that was killed on one goes on there.
    """

    build: Factory
    data: ImageSet
    schedule: Schedule
    seed: int
    cache: Path
    key: Mapping[str, Any]
    loss: Loss = cross_entropy
    device: str = "cpu"

    def network(self, progress: bool = True) -> nn.Module:
        """The trained network on its device, in eval mode and frozen; `progress` shows a bar while it is trained."""
        if len(self.data.labels) < 2:
            raise DataError(f"Expected at least two images to train on, but got {len(self.data.labels)}.")
        with torch.inference_mode(False), torch.enable_grad():
            network, found = self._untrained().to(self.device), self._checkpoint.weights()
            if found is None:
                self._train(network, self._checkpoint, progress)
            else:
                network.load_state_dict(found.tensors)
        return network.eval().requires_grad_(False)

    def log(self) -> Log:
        """Loss, accuracy on the augmented images and CPU seconds of every epoch; empty where it is not finished."""
        found = self._checkpoint.weights()
        return [] if found is None else found.log

    def seconds(self) -> float:
        """CPU seconds of the whole training; 0 where it is not finished."""
        return sum(epoch["cpu_seconds"] for epoch in self.log())

    def _untrained(self) -> nn.Module:
        network = build(self.build, self.seed)
        network.to(memory_format=LAYOUT)  # type: ignore[call-overload]  # which the stubs leave out
        return network

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        settings = {
            "key": dict(self.key),
            "data": self.data.name,
            "rows": len(self.data.labels),
            "images": self.data.digest(),
            "schedule": asdict(self.schedule),
            "seed": self.seed,
            "loss": _name_of(self.loss),
            "start": model_fingerprint(self._untrained()),
        }
        name = f"{self.data.name}-{self.key.get('network', 'network')}"
        return Checkpoint.of(self.cache, re.sub(r"[^\w.-]+", "_", name), settings)

    def _train(self, network: nn.Module, checkpoint: Checkpoint, progress: bool) -> None:
        checkpoint.prepare()
        optimiser = self.schedule.over(network)
        log = _resume(network, optimiser, checkpoint.state())
        rows, epochs = torch.arange(len(self.data.labels)), self.schedule.epochs
        steps = len(_batches(rows, self.schedule.batch_size))
        network.train()
        with tqdm(total=epochs * steps, initial=len(log) * steps, disable=not progress, dynamic_ncols=True) as shown:
            shown.set_description(checkpoint.path.stem, refresh=False)
            for epoch in range(len(log), epochs):
                began = time.process_time()
                loss, accuracy = self._epoch(network, optimiser, rows, epoch, shown)
                seconds = time.process_time() - began
                if not math.isfinite(loss):
                    raise SettingsError(
                        f"Expected a finite loss, but epoch {epoch + 1} gave {loss}; lower the learning rate."
                    )
                log.append({"epoch": epoch + 1, "loss": loss, "accuracy": accuracy, "cpu_seconds": seconds})
                shown.set_postfix_str(f"epoch {epoch + 1}/{epochs}, loss {loss:.4g}, accuracy {accuracy:.3f}")
                if epoch + 1 < epochs:
                    checkpoint.keep(_state(network, optimiser), log)
        checkpoint.finish(network.state_dict(), log)

    def _epoch(
        self, network: nn.Module, optimiser: torch.optim.Optimizer, rows: Tensor, epoch: int, shown: tqdm[None]
    ) -> tuple[float, float]:
        """One pass; returns the mean loss and the share of images that were put in the right class."""
        draw = zlib.crc32(f"{self.seed} {epoch}".encode())
        generator = torch.Generator().manual_seed(draw)
        batches = _batches(rows[torch.randperm(len(rows), generator=generator)], self.schedule.batch_size)
        total, right = 0.0, 0
        with seeded(draw):
            for number, places in enumerate(batches):
                part = (epoch * len(batches) + number) / (self.schedule.epochs * len(batches))
                for group in optimiser.param_groups:
                    group["lr"] = self.schedule.rate(part)
                loss, hits = self._step(network, optimiser, places, generator, part)
                total, right = total + len(places) * loss, right + hits
                shown.update()
        seen = sum(map(len, batches))
        return total / seen, right / seen

    def _step(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        places: Tensor,
        generator: torch.Generator,
        part: float,
    ) -> tuple[float, int]:
        """One batch; returns its mean loss and the number of images that were put in the right class."""
        device, dtype = placement(network)
        images, labels = self.data.pixels(places), self.data.labels[places].to(device)
        if self.schedule.augment:
            images = augmented(images, generator)
        optimiser.zero_grad()
        logits = network(images.to(device).to(dtype=dtype, memory_format=LAYOUT).div(255))
        _check(logits, labels)
        loss = self.loss(logits, labels, part).mean()
        loss.backward()
        optimiser.step()
        return float(loss.detach()), int((logits.argmax(1) == labels).sum())


def _name_of(loss: Loss) -> str:
    name = getattr(loss, "__qualname__", "<lambda>")
    if "<lambda>" in name:
        raise SettingsError(
            "Expected the loss to be a named function, since checkpoints are found by its name, but got "
            f"{type(loss).__name__} without one; define it with def."
        )
    owner = getattr(loss, "__self__", None)
    return str(name) if owner is None else f"{owner!r}.{name}"


def _batches(rows: Tensor, size: int) -> list[Tensor]:
    """The rows in parts of `size`; a single one at the end is left out, since batch norm cannot learn from it."""
    return [part for part in rows.split(size) if len(part) > 1]


def _check(logits: Tensor, labels: Tensor) -> None:
    lowest, highest = int(labels.min()), int(labels.max())
    if logits.dim() != 2 or len(logits) != len(labels) or lowest < 0 or highest >= logits.shape[1]:
        raise DataError(
            f"Expected logits (images, classes) of {len(labels)} images with labels {lowest} to {highest}, but the "
            f"network gave {tuple(logits.shape)}; build it for the classes of the data."
        )


def _state(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What a training needs to go on: weights and momentum."""
    momenta = {place: state.get("momentum_buffer") for place, state in optimiser.state_dict()["state"].items()}
    return {f"network.{name}": value for name, value in network.state_dict().items()} | {
        f"momentum.{place}": value for place, value in momenta.items() if value is not None
    }


def _resume(network: nn.Module, optimiser: torch.optim.Optimizer, state: Stored | None) -> Log:
    """Put network and optimiser where the last whole epoch left them, and return the log so far."""
    if state is None:
        return []
    network.load_state_dict(dict(_part_of(state.tensors, "network.")))
    parameters = list(network.parameters())
    momenta = {}
    for place, value in _part_of(state.tensors, "momentum."):
        alike = torch.empty_like(parameters[int(place)]).copy_(value)  # another layout in memory may round otherwise
        momenta[int(place)] = {"momentum_buffer": alike}
    optimiser.load_state_dict(optimiser.state_dict() | {"state": momenta})
    return state.log


def _part_of(tensors: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    return ((name.removeprefix(prefix), value) for name, value in tensors.items() if name.startswith(prefix))
