"""What a development cell holds, how it is read out of a network, and how it is kept in a file."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from splitpoint.datasets.entry import VARIABLE, folders, locate
from splitpoint.errors import DataError, SplitPointError
from splitpoint.files import drop_stale_drafts, replacing

Array = NDArray[np.float32]
Network = TypeVar("Network", bound=nn.Module)

TRAIN, TEST, FOREIGN = 20_000, 3_000, 2_000
"""Most rows of a cell for training, for testing, and in one foreign set."""


class MissingError(SplitPointError):
    """A package or a file that a source needs is not there; the source is skipped."""


@dataclass(frozen=True)
class Rows:
    """Rows of a classifier: `features` (N, C) that its last linear layer reads, `logits` (N, K), and labels (N,).

    Foreign rows have no label.
    """

    features: Array
    logits: Array
    label: NDArray[np.int64] | None = None

    @property
    def accuracy(self) -> float:
        """Share of the rows whose largest logit is that of the label; NaN without labels."""
        return float("nan") if self.label is None else float((self.logits.argmax(1) == self.label).mean())


@dataclass(frozen=True)
class Cell:
    """A trained classifier as rows: those it was trained on, held-out ones, and foreign ones by their set's name."""

    train: Rows
    test: Rows
    foreign: Mapping[str, Rows]

    def check(self) -> None:
        """DataError unless widths and numbers of rows agree, every number is finite and every label is a class."""
        width, classes = self.train.features.shape[1], self.train.logits.shape[1]
        parts = {"train": (self.train, TRAIN), "test": (self.test, TEST)}
        parts |= {f"foreign_{name}": (rows, FOREIGN) for name, rows in self.foreign.items()}
        for name, (rows, most) in parts.items():
            shapes, count = (rows.features.shape, rows.logits.shape), len(rows.features)
            if shapes != ((count, width), (count, classes)) or not 0 < count <= most:
                raise DataError(
                    f"Expected 1 to {most} rows of {width} features and {classes} logits, but {name} has {shapes}."
                )
            if not (np.isfinite(rows.features).all() and np.isfinite(rows.logits).all()):
                raise DataError(f"Expected finite features and logits, but {name} has NaN or inf.")
            label = rows.label
            if label is not None and (label.shape != (count,) or label.min() < 0 or label.max() >= classes):
                raise DataError(f"Expected a label below {classes} for each of {count} rows, but {name} has others.")

    def write(self, path: Path) -> None:
        """Write one npz file, whole or not at all."""
        self.check()
        parts = {"train": self.train, "test": self.test} | {f"foreign_{n}": rows for n, rows in self.foreign.items()}
        arrays = {f"{part}_features": rows.features for part, rows in parts.items()}
        arrays |= {f"{part}_logits": rows.logits for part, rows in parts.items()}
        arrays |= {f"{part}_label": rows.label for part, rows in parts.items() if rows.label is not None}
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_stale_drafts(path)
        with replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, **arrays)

    @staticmethod
    def read(path: Path) -> Cell:
        """The cell in a file that `write` made."""
        with np.load(path, allow_pickle=False) as file:
            names = [key[len("foreign_") : -len("_features")] for key in file if key.startswith("foreign_")]
            foreign = {
                name: Rows(file[f"foreign_{name}_features"], file[f"foreign_{name}_logits"])
                for name in dict.fromkeys(name for name in names if f"foreign_{name}_features" in file)
            }
            train, test = (
                Rows(file[f"{part}_features"], file[f"{part}_logits"], file[f"{part}_label"])
                for part in ("train", "test")
            )
        return Cell(train, test, foreign)


# What sources are made of


def file_of(name: str, advice: str = "") -> Path:
    """The file `name` in the folders of SPLITPOINT_DATA, or `MissingError`; `advice` says how to make it."""
    found = locate(name)
    if found is None:
        searched = ", ".join(map(str, folders())) or "no folder"
        raise MissingError(f"Expected {name} in a folder of {VARIABLE}, which names {searched}; put it there{advice}.")
    return found


def package(module: str, distribution: str) -> ModuleType:
    """An imported module, or `MissingError` with what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingError(
            f"Expected the package {distribution}, but {module} cannot be imported ({error}); "
            f"install it with: pip install {distribution}"
        ) from error


def seeded(make: Callable[[], Network], seed: int) -> Network:
    """A network with initial weights of the seed, which leaves the global generator alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def train(
    network: nn.Module, x: Tensor, label: Tensor, *, epochs: int, rate: float = 1e-3, batch: int = 64, seed: int = 0
) -> nn.Module:
    """Train with Adam on the cross entropy, without any regularisation, and return the network in eval mode."""
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), label[rows]).backward()
            optimiser.step()
    return network.eval()


def last_linear(network: nn.Module) -> nn.Linear:
    """The linear layer that comes last among the parts of a network."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]


@torch.no_grad()
def readout(network: nn.Module, x: Tensor, label: Tensor | None = None, batch: int = 250) -> Rows:
    """What the last linear layer of a network reads and what the network answers, for rows `x`, batch by batch."""
    features: list[Tensor] = []
    hook = last_linear(network).register_forward_pre_hook(lambda _, args: features.append(args[0]))
    try:
        logits = torch.cat([network(rows) for rows in x.split(batch)])
    finally:
        hook.remove()
    numbers = None if label is None else label.numpy().astype(np.int64)
    return Rows(torch.cat(features).float().numpy(), logits.float().numpy(), numbers)


def cell_of(
    network: nn.Module,
    train_rows: tuple[Tensor, Tensor],
    test_rows: tuple[Tensor, Tensor],
    foreign: Mapping[str, Tensor],
) -> Cell:
    """The cell of a trained network: rows and labels for training and testing, and foreign rows, at most `FOREIGN`."""
    others = {name: readout(network, x[:FOREIGN]) for name, x in foreign.items()}
    return Cell(readout(network, *train_rows), readout(network, *test_rows), others)
