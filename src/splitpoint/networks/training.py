"""The loop that trains a stack of networks, each in its own order of the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from tqdm import tqdm

from splitpoint.batches import (
    LABELS,
    Batch,
    Data,
    flattened,
    item_of,
    labelled,
    mapped,
    one_pass,
    placement,
    whole_arrays,
)
from splitpoint.divergence import check_converging, check_finite
from splitpoint.errors import DataError, SettingsError
from splitpoint.networks.stack import Stack
from splitpoint.networks.surgery import seeded
from splitpoint.settings import settle
from splitpoint.tensors import from_numpy
from splitpoint.training import Adam, Optimiser, Sgd

FEWEST_STEPS, MOST_STEPS = 2_000, 20_000
GATHERED = 2**20
"""Numbers that are gathered from the data at a time; a few megabytes."""

StepLoss = Callable[[Stack, Batch, float], Tensor]
"""From a stack, a batch (E, B, ...) and the share of the training that is done to the loss (E,) of every member."""

Prepare = Callable[[Tensor], Tensor]
"""From the targets (S, E, B, ...) of S steps as they are in the data to what the loss compares with, in the same order;
done for many steps at once, since it takes as long for one."""


@dataclass(frozen=True, kw_only=True)
class NetworkTraining:
    """How networks are trained.

    Attributes:
        epochs: passes over the data; None for 400, or what makes 2,000 to 20,000 steps.
        learning_rate: of the optimiser.
        batch_size: rows of a step, for data that do not come in batches.
        weight_decay: L2 penalty.
        optimiser: "adam", or "sgd" with Nesterov momentum 0.9.
        milestones: shares of the training after which the learning rate is divided by ten.
    """

    epochs: int | None = None
    learning_rate: float = 1e-3
    batch_size: int = 64
    weight_decay: float = 0.0
    optimiser: Literal["adam", "sgd"] = "adam"
    milestones: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        settle(self)
        if self.epochs is not None and self.epochs < 1:
            raise SettingsError(f"Expected epochs >= 1 or None, but got {self.epochs}.")
        if self.batch_size < 1:
            raise SettingsError(f"Expected batch_size >= 1, but got {self.batch_size}.")
        if not (self.learning_rate > 0 and self.weight_decay >= 0):
            raise SettingsError(
                f"Expected learning_rate > 0 and weight_decay >= 0, but got {self.learning_rate}, {self.weight_decay}."
            )
        if not all(0 <= milestone <= 1 for milestone in self.milestones):
            raise SettingsError(f"Expected milestones in [0, 1], but got {self.milestones}.")

    def epochs_for(self, steps: int) -> int:
        """Number of epochs when an epoch has that many steps."""
        return self.epochs or min(max(400, -(-FEWEST_STEPS // steps)), max(1, MOST_STEPS // steps))

    def rate(self, part: float) -> float:
        """Learning rate when a share `part` of the training is done."""
        return float(self.learning_rate * 0.1 ** sum(part >= milestone for milestone in self.milestones))

    def over(self, parameters: Iterator[nn.Parameter]) -> Optimiser:
        """The optimiser of these parameters."""
        if self.optimiser == "sgd":
            return Sgd(parameters, self.weight_decay)
        return Adam(parameters, self.weight_decay, decoupled=False)


def train_stack(
    networks: Sequence[nn.Module],
    data: Sequence[Data],
    loss: StepLoss,
    settings: NetworkTraining,
    *,
    seeds: Sequence[int],
    prepare: Prepare = torch.Tensor.detach,
    output_key: str | int | None = None,
    label: str = "training",
    progress: bool = True,
) -> list[nn.Module]:
    """Train the networks at once and return them in eval mode, each trained on its own data in its own order.

    Args:
        networks: untrained, of one architecture; they are not changed.
        data: for every network.
        loss: see `StepLoss`.
        settings: of the optimiser.
        seeds: for every network that of its order of the rows; the first also of what is random inside the networks.
        prepare: see `Prepare`.
        output_key: which entry of a network's output is the prediction.
        label: of the progress bar.
        progress: whether to show it.
    """
    with torch.inference_mode(False), torch.enable_grad(), seeded(seeds[0]):
        stack = Stack.of(networks, output_key).train()
        feed = feed_of(data, settings.batch_size, networks[0], seeds, prepare)
        optimiser = settings.over(stack.parameters())
        total = settings.epochs_for(feed.steps)
        with tqdm(total=total, desc=label, leave=False, disable=not progress, dynamic_ncols=True) as shown:
            for epoch in range(total):
                last = train_epoch(stack, feed, optimiser, loss, settings, epoch / total, 1 / total)
                check_converging(last, "network", epoch + 1, settings.learning_rate)
                shown.set_postfix_str(f"loss {float(last.mean()):.4g}", refresh=False)
                shown.update()
        check_finite(stack.networks(), "network", settings.learning_rate)
        return [network.eval().requires_grad_(False) for network in stack.networks()]


def train_epoch(
    stack: Stack,
    feed: Feed,
    optimiser: Optimiser,
    loss: StepLoss,
    settings: NetworkTraining,
    done: float,
    share: float,
) -> Tensor:
    """One pass over the data; returns the loss (E,) of the last step."""
    losses = torch.zeros(1)
    for number, batch in enumerate(feed.epoch()):
        part = done + share * number / feed.steps
        optimiser.clear()
        losses = loss(stack, batch, part)
        losses.backward(torch.ones_like(losses))
        optimiser.step(settings.rate(part))
    return losses.detach()


@dataclass
class Feed(ABC):
    """Batches (E, B, ...), one row order for each member; `steps` of them in an epoch."""

    steps: int

    @abstractmethod
    def epoch(self) -> Iterator[Batch]:
        """One pass over every member's data."""


def feed_of(
    data: Sequence[Data],
    batch_size: int,
    network: nn.Module,
    seeds: Sequence[int],
    prepare: Prepare = torch.Tensor.detach,
) -> Feed:
    """Batches for a stack whose members have these data, one entry for each, which may be the same."""
    distinct = list({id(part): part for part in data}.values())
    arrays = [columns for columns in map(_columns, distinct) if columns is not None]
    if len(arrays) == len(distinct):
        owners = [next(i for i, part in enumerate(distinct) if part is own) for own in data]
        return ArrayFeed.of(arrays, owners, batch_size, network, seeds, prepare)
    return StreamFeed.of(data, batch_size, network, seeds, prepare)


def _columns(data: Data) -> dict[Any, Any] | None:
    if isinstance(data, TensorDataset):
        return dict(enumerate(data.tensors))
    return whole_arrays(data)


@dataclass
class ArrayFeed(Feed):
    """Data that are in memory as a whole: members draw their own permutations."""

    columns: dict[Any, Tensor]
    places: list[Tensor]
    batch_size: int
    network: nn.Module
    generators: list[torch.Generator]
    prepare: Prepare

    @staticmethod
    def of(
        arrays: Sequence[dict[Any, Any]],
        owners: Sequence[int],
        batch_size: int,
        network: nn.Module,
        seeds: Sequence[int],
        prepare: Prepare,
    ) -> ArrayFeed:
        """Join the arrays of all data sets and remember which rows belong to which member."""
        dtype = placement(network)[1]
        columns = {name: torch.cat([as_column(array[name], dtype) for array in arrays]) for name in arrays[0]}
        counts = [len(next(iter(array.values()))) for array in arrays]
        if min(counts) < 2:
            raise DataError(f"Expected at least two rows to train on, but got {min(counts)}; give more data.")
        starts = [sum(counts[:i]) for i in range(len(counts))]
        places = [torch.arange(starts[owner], starts[owner] + counts[owner]) for owner in owners]
        size = min(batch_size, min(counts))
        some = {name: column[:size] for name, column in columns.items()}
        next(labelled([item_of(some)], size)).to(network)  # decides how it takes nested inputs, while these are rows
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return ArrayFeed(-(-max(counts) // size), columns, places, size, network, generators, prepare)

    def epoch(self) -> Iterator[Batch]:
        """Shuffled batches of one size; the last one is filled up with rows of the same pass."""
        count = self.steps * self.batch_size
        orders = [one_pass(*own, count) for own in zip(self.places, self.generators, strict=True)]
        steps = torch.stack(orders).unflatten(1, (self.steps, self.batch_size)).transpose(0, 1)
        for some in steps.split(self._gathered()):
            yield from _each(self.gathered(some))

    def gathered(self, some: Tensor) -> Batch:
        """The rows with these numbers (S, E, B), as one batch."""
        taken = some.flatten().to(next(iter(self.columns.values())).device)
        rows = {k: v.index_select(0, taken).unflatten(0, some.shape) for k, v in self.columns.items()}
        together = next(labelled([item_of(rows)], 1)).to(self.network)
        assert together.target is not None
        return replace(together, target=self.prepare(together.target))

    def _gathered(self) -> int:
        """Steps whose rows are gathered together, which costs far less than step by step."""
        numbers = sum(column[0].numel() for column in self.columns.values())
        return max(1, GATHERED // (numbers * self.batch_size * len(self.places)))


def _each(batch: Batch) -> Iterator[Batch]:
    """The batches in a batch of batches."""
    assert batch.target is not None
    for number in range(len(batch.target)):
        yield member_of(batch, number)


def member_of(batch: Batch, number: int) -> Batch:
    """One batch of a batch of batches."""
    assert batch.target is not None
    args, kwargs = mapped(lambda value: value[number], (batch.args, batch.kwargs))
    return Batch(args, kwargs, batch.target[number])


def as_column(array: Any, dtype: torch.dtype) -> Tensor:
    """The array as a tensor; NumPy floats in the precision of the network."""
    if isinstance(array, np.ndarray):
        array = from_numpy(array)
        array = array.to(dtype) if array.is_floating_point() else array
    assert isinstance(array, Tensor)
    return array.detach()


@dataclass
class StreamFeed(Feed):
    """Data that come in batches: every member makes its own pass, so a shuffling loader shuffles for each.

    A batch of a single row at the end of longer ones is left out: batch norm cannot learn from it.
    """

    data: list[Data]
    batch_size: int
    network: nn.Module
    smallest: int
    prepare: Prepare

    @staticmethod
    def of(
        data: Sequence[Data], batch_size: int, network: nn.Module, seeds: Sequence[int], prepare: Prepare
    ) -> StreamFeed:
        """Wrap data sets in shuffling loaders and count the steps of a pass."""
        if any(isinstance(part, Iterator) for part in data):
            raise DataError(
                "Expected data that can be read once per epoch, but got an iterator; pass a DataLoader or a list."
            )
        sources = [_loader(part, batch_size, seed) for part, seed in zip(data, seeds, strict=True)]
        sizes = [_rows(batch) for batch in labelled(sources[0], batch_size)]
        if not sizes:
            raise DataError("Expected data to train on, but got no batch; pass at least two rows.")
        smallest = min(2, max(sizes))
        return StreamFeed(sum(size >= smallest for size in sizes), sources, batch_size, network, smallest, prepare)

    def epoch(self) -> Iterator[Batch]:
        """Batches of all members side by side; a pass ends with its shortest member."""
        for batches in zip(*(labelled(part, self.batch_size) for part in self.data), strict=False):
            if min(map(_rows, batches)) >= self.smallest:
                batch = _stacked([own.to(self.network) for own in batches])
                assert batch.target is not None
                yield replace(batch, target=self.prepare(batch.target[None])[0])


def _loader(data: Data, batch_size: int, seed: int) -> Data:
    if isinstance(data, Dataset):
        shuffle = not isinstance(data, IterableDataset)
        return DataLoader(data, batch_size, shuffle=shuffle, generator=torch.Generator().manual_seed(seed))
    return data


def _rows(batch: Batch) -> int:
    return 0 if batch.target is None else len(batch.target)


def _stacked(batches: Sequence[Batch]) -> Batch:
    """One batch (E, B, ...) of several."""
    rows = min(map(_rows, batches))

    def join(*values: Any) -> Tensor:
        return torch.stack([value[:rows] for value in values])

    args, kwargs, target = mapped(join, *((batch.args, batch.kwargs, batch.target) for batch in batches))
    return Batch(args, kwargs, target)


def in_memory(data: Data, model: nn.Module, batch_size: int) -> dict[Any, Tensor] | None:
    """Columns that hold the whole data set, by position or by name; None where it cannot be read again, or row by row.

    Loaders, data sets and lists of batches are read once, in the order in which they come.
    """
    dtype = placement(model)[1]
    arrays = dict(enumerate(data.tensors)) if isinstance(data, TensorDataset) else whole_arrays(data)
    if arrays is not None:
        if not all(getattr(array, "ndim", 0) for array in arrays.values()):
            return None
        return {name: as_column(array, dtype) for name, array in arrays.items()}
    if isinstance(data, Iterator):
        return None
    parts: dict[Any, list[Tensor]] = {}
    for batch in labelled(data, batch_size):
        assert batch.target is not None
        named = flattened(
            batch.kwargs | {LABELS: batch.target} if batch.kwargs else dict(enumerate([*batch.args, batch.target]))
        )
        if parts and parts.keys() != named.keys():
            return None
        for name, value in named.items():
            if not isinstance(value, Tensor | np.ndarray) or value.shape[:1] != batch.target.shape[:1]:
                return None
            parts.setdefault(name, []).append(as_column(value, dtype))
    if not parts or any(len({own.shape[1:] for own in values}) > 1 for values in parts.values()):
        return None
    return {name: torch.cat(values) for name, values in parts.items()}


def is_repeatable(data: Data) -> bool:
    """Whether a second pass over the data gives the same rows in the same order: arrays and tensor data sets."""
    return isinstance(data, TensorDataset) or whole_arrays(data) is not None


def rows_in(columns: dict[Any, Tensor]) -> int:
    """Number of rows."""
    return len(next(iter(columns.values())))
