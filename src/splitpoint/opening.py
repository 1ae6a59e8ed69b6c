"""How the rows of a model are read: what a first batch shows, and what a cache remembers of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from splitpoint.batch_rows import vectors_of
from splitpoint.batches import Batch
from splitpoint.errors import DataError
from splitpoint.features import Reading, Tap, branches_of, open_tap
from splitpoint.layer_setting import LayerSpec
from splitpoint.layout import Layout
from splitpoint.tasks import Task


class Settings(Protocol):
    """The settings that decide how rows are read; see `recording.Source`."""

    @property
    def task(self) -> Task:
        """How outputs and targets are read."""

    @property
    def layer(self) -> LayerSpec:
        """Where features are read."""

    @property
    def output_key(self) -> str | int | None:
        """Which entry of the output is the prediction."""

    @property
    def context(self) -> bool:
        """Whether layers before the last one are read too."""

    @property
    def images(self) -> bool:
        """Whether whole maps and sequences are described too."""


class Opening(NamedTuple):
    """How rows are read.

    Attributes:
        tap: where features are read.
        layout: how features and outputs are shaped.
        inputs: number of positional arguments of the model.
        widths: of what tells of maps and sequences as a whole, one a layer; None where nothing does.
        unseen: see `unseen_inputs`.
    """

    tap: Tap
    layout: Layout
    inputs: int
    widths: tuple[int, ...] | None
    unseen: tuple[str, ...]

    @staticmethod
    def of(model: nn.Module, settings: Settings, batch: Batch) -> tuple[Opening, Reading]:
        """How a first batch, on the model's device, shows that rows are read, and what was read of it."""
        task, images = settings.task, settings.images
        stages = task.squeezable if images else None
        key, context = settings.output_key, settings.context
        tap, reading = open_tap(model, settings.layer, batch, key, context=context, stages=stages)
        layout = layout_of(tap, reading, task)
        vectors = vectors_of(layout, reading) if layout.dense and images else None
        widths = None if vectors is None else tuple(vector.shape[1] for vector in vectors)
        return Opening(tap, layout, len(batch.args), widths, unseen_inputs(tap, batch, reading)), reading

    def facts(self) -> dict[str, Any]:
        """The same as JSON has it, without model and function."""
        tap = self.tap
        return {
            "names": tap.names,
            "context": tap.context,
            "stages": tap.stages,
            "branches": [dataclasses.astuple(branch) for branch in tap.branches],
            "unseen": self.unseen,
            "reason": tap.reason,
            "layout": dataclasses.asdict(self.layout),
            "inputs": self.inputs,
            "widths": self.widths,
        }

    @staticmethod
    def remembered(model: nn.Module, settings: Settings, facts: Mapping[str, Any]) -> Opening:
        """That of `facts`."""
        names, function = tuple(facts["names"]), None
        if not names:
            assert callable(settings.layer)
            function = settings.layer
        context, stages = tuple(facts["context"]), tuple(facts["stages"])
        key, reason = settings.output_key, facts["reason"]
        tap = Tap(model, names, function, reason, key, context, stages, branches_of(facts))
        saved, widths = facts["layout"], facts["widths"]
        layout = Layout(tuple(saved["last"]), saved["dense"], saved["axis"])
        return Opening(tap, layout, facts["inputs"], None if widths is None else tuple(widths), tuple(facts["unseen"]))


def layout_of(tap: Tap, reading: Reading, task: Task) -> Layout:
    """How the features and the output of a first batch are shaped."""
    last = [tap.channels_last(place, value.dim()) for place, value in enumerate(reading.features)]
    return Layout.infer(reading.features, last, reading.output, task.squeezable)


def check_complete(tap: Tap, reading: Reading, label: str) -> None:
    """Refuse rows of which a branch did not run: what is fitted are the features of all of them together."""
    lost = [branch.name for branch, gone in zip(tap.branches, reading.missing, strict=False) if gone]
    if lost:
        raise DataError(
            f"Expected every branch of the model to run on the {label} data, but {', '.join(lost)} did not; leave such "
            "rows out, since only predictions may lack one."
        )


def input_name(path: tuple[Any, ...]) -> str:
    """An input in words.

    >>> input_name(("image",)), input_name((0,)), input_name((0, 1))
    ('image', 'input 1', 'input 1.2')
    """
    parts = [str(part + 1) if isinstance(part, int) else str(part) for part in path]
    return ".".join(parts) if isinstance(path[0], str) else "input " + ".".join(parts)


def unseen_inputs(tap: Tap, batch: Batch, reading: Reading) -> tuple[str, ...]:
    """Inputs, of several, that move the output of the model and nothing that is read of it.

    Each in turn has its rows exchanged for each other; one that is the same in every row tells nothing.
    """
    inputs = {path: value for path, value in batch.inputs().items() if value.shape[:1] == reading.output.shape[:1]}
    found = []
    for path, value in inputs.items() if len(inputs) > 1 and not reading.whole else ():
        moved = batch.with_inputs({path: value.roll(1, 0)})
        other = tap(*moved.args, **moved.kwargs)
        if torch.equal(other.output, reading.output):
            continue
        seen = [*reading.features, *([] if reading.context is None else [reading.context])]
        now = [*other.features, *([] if other.context is None else [other.context])]
        if all(torch.equal(*pair) for pair in zip(seen, now, strict=True)):
            found.append(input_name(path))
    return tuple(found)
