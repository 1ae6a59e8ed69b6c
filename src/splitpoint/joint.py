"""When there is no trained model yet: base network first and heads after, or both in one loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batches import Batch, Data, labelled, output_tensor
from splitpoint.errors import DataError
from splitpoint.features import Tap, open_tap
from splitpoint.heads import Heads
from splitpoint.layout import Layout
from splitpoint.networks import NetworkTraining
from splitpoint.recording import Source, rows_of
from splitpoint.tasks import Rows
from splitpoint.training import Losses

MOMENTUM = 0.05

BaseLoss = Callable[[Tensor, Tensor], Tensor]
"""From the model's output tensor and the target to a scalar."""

LayoutLoss = Callable[[Layout, Tensor, Tensor], Tensor]
"""The same, knowing how the output is shaped."""


@dataclass(frozen=True)
class Companion:
    """Heads that learn beside the base network.

    Attributes:
        heads: a stack of one.
        loss: from heads and rows (1, B, ...) to the loss of every trunk.
        follow: called with the rows of every batch, before the loss, to keep scales up to date.
        extras: tensors that belong to the heads, such as the scale of their targets.
    """

    heads: Heads
    loss: Callable[[Heads, Rows], Losses]
    follow: Callable[[Rows], None]
    extras: dict[str, Tensor]


def train_base(
    model: nn.Module, data: Data, loss: LayoutLoss, settings: NetworkTraining, source: Source, progress: bool
) -> None:
    """Train the base network alone, in place."""
    _, layout, _ = _first_look(model, data, source)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)

    def step(batch: Batch) -> Tensor:
        output = output_tensor(model(*batch.args, **batch.kwargs), source.output_key)
        return loss(layout, output, _target(batch))

    _loop(model, data, settings.epochs_for(1), optimiser, step, source.batch_size, "training base model", progress)


def train_together(
    model: nn.Module,
    data: Data,
    loss: LayoutLoss,
    settings: NetworkTraining,
    source: Source,
    companion_for: Callable[[Rows], Companion],
    progress: bool,
) -> Companion:
    """Train the base network and its heads on the sum of their losses, in place; returns the heads.

    Residuals are detached, so that the heads' losses shape the features but never the targets they are judged by.
    """
    tap, layout, rows = _first_look(model, data, source)
    companion = companion_for(rows)
    parameters = [*model.parameters(), *companion.heads.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate)
    numbers = itertools.count()

    def step(batch: Batch) -> Tensor:
        output, features = tap.live(*batch.args, **batch.kwargs)
        rows = rows_of(layout, features, output.detach(), batch, source, next(numbers))
        stacked = {name: values.to(output.device)[None] for name, values in rows.items()}
        companion.follow(stacked)
        own = torch.stack(list(companion.loss(companion.heads, stacked).values())).sum()
        return loss(layout, output, _target(batch)) + own

    _loop(model, data, settings.epochs_for(1), optimiser, step, source.batch_size, "training jointly", progress)
    return companion


def _first_look(model: nn.Module, data: Data, source: Source) -> tuple[Tap, Layout, Rows]:
    """Tap, layout and rows of a first batch, which also shows whether targets fit the output."""
    _check_repeatable(data)
    first = next(labelled(data, source.batch_size), None)
    if first is None:
        raise DataError("Expected data to train on, but got none; pass at least two rows.")
    moved = first.to(model)
    tap, output, features = open_tap(model, source.layer, moved, source.output_key)
    last = [tap.channels_last(place, value.dim()) for place, value in enumerate(features)]
    layout = Layout.infer(features, last, output, source.task.squeezable)
    return tap, layout, rows_of(layout, features, output, moved, source, 0)


def follow_features(heads: Heads, rows: Rows) -> None:
    """Let the standardisation follow the features, which move while the base network learns."""
    features = rows["features"].detach()
    if features.shape[1] > 1:
        heads.center.lerp_(features.mean(1, keepdim=True), MOMENTUM)
        heads.spread.lerp_(features.std(1, keepdim=True).clamp(min=1e-3), MOMENTUM)


def _loop(
    model: nn.Module,
    data: Data,
    epochs: int,
    optimiser: torch.optim.Optimizer,
    step: Callable[[Batch], Tensor],
    rows_per_call: int,
    label: str,
    progress: bool,
) -> None:
    _check_repeatable(data)
    with _train_mode(model), tqdm(total=epochs, desc=label, leave=False, disable=not progress) as shown:
        for _ in range(epochs):
            loss = torch.zeros(())
            for batch in labelled(data, rows_per_call):
                optimiser.zero_grad()
                loss = step(batch.to(model))
                loss.backward()
                optimiser.step()
            shown.set_postfix_str(f"loss {float(loss.detach()):.4g}", refresh=False)
            shown.update()
    optimiser.zero_grad()


@contextmanager
def _train_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _check_repeatable(data: Data) -> None:
    if isinstance(data, Iterator):
        raise DataError(
            "Expected data that can be read once per epoch, but got an iterator; pass a DataLoader or a list."
        )


def _target(batch: Batch) -> Tensor:
    assert batch.target is not None
    return batch.target
