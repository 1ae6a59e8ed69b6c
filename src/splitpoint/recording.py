"""One pass of the frozen model over the data: every row's features and what the heads are trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batches import Batch, Data, labelled
from splitpoint.cache import DiskTable, Table
from splitpoint.errors import CacheError, DataError, ShapeError
from splitpoint.features import LayerSpec, Reading, Tap, layer_name, open_tap
from splitpoint.files import digest, model_fingerprint
from splitpoint.groups import Groups, check_count, group_ids
from splitpoint.layout import Layout
from splitpoint.tasks import Rows, Task

T = TypeVar("T")

ROWS = Layout((False,), False, 1)
"""Layout of features (N, C) and outputs (N, D) that are rows already."""


@dataclass(frozen=True)
class Source:
    """How rows are read: the settings that `record` needs, the same for training and calibration data.

    Attributes:
        task: how outputs and targets are read.
        layer: see `features.open_tap`.
        output_key: see `features.Tap`.
        batch_size: rows per call of the model, for data that do not come in batches.
        positions: most positions kept of one row of a dense output, drawn at random (by the batch's number).
        context: whether layers before the last one are read too, where `layer` is None; see `features.open_tap`.
    """

    task: Task
    layer: LayerSpec
    output_key: str | int | None
    batch_size: int
    positions: int
    context: bool = False


@dataclass(frozen=True)
class Recording:
    """Recorded rows: features, outputs and targets of a model, and where they were read.

    Attributes:
        task: how outputs and targets were read.
        tap: where the features came from; None for rows without a model.
        layout: how outputs of the model are shaped.
        table: the rows.
        inputs: number of positional arguments of the model.
    """

    task: Task
    tap: Tap | None
    layout: Layout
    table: Table
    inputs: int

    @staticmethod
    def of(
        task: Task,
        features: Tensor | np.ndarray[Any, Any],
        outputs: Tensor | np.ndarray[Any, Any],
        targets: Tensor | np.ndarray[Any, Any],
        *,
        groups: Groups | None = None,
        tap: Tap | None = None,
        layout: Layout | None = None,
    ) -> Recording:
        """A recording made of rows that are there already, such as features on disk.

        Args:
            task: `Regression()` or `Classification()`.
            features: (N, C).
            outputs: (N,) or (N, D) outputs of the model for the same rows.
            targets: (N,) or in the shape of the outputs.
            groups: (N,) a number or name for each row, equal where rows belong together, as those of one patient do.
            tap: the model that they come from and where in it; a predictor without one predicts from rows only.
            layout: how the model's outputs are shaped; plain vectors by default.
        """
        table, answers, wanted = (torch.as_tensor(values) for values in (features, outputs, targets))
        if table.dim() != 2 or len(table) != len(answers):
            raise ShapeError(
                f"Expected features (rows, channels) of the {len(answers)} rows of the outputs, but got "
                f"{tuple(table.shape)}; flatten or pool them, one line for each row."
            )
        owners = None if groups is None else group_ids(groups)
        if owners is not None:
            check_count(owners, len(answers), "recorded")
        rows = _columns(ROWS, Reading(answers, [table]), wanted, task, owners).rows()
        if not len(rows["features"]):
            raise DataError("Expected at least two rows with a target, but got none; check the targets.")
        places = 1 if tap is None else max(len(tap.names), 1)
        return Recording(task, tap, layout or Layout((False,) * places, False, 1), Table.in_memory(rows), 1)

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers of features and of outputs (or logits) of a row."""
        return self.table.width("features"), self.table.width(self.task.answers)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return torch.device("cpu") if self.tap is None else self.tap.device


def bar(items: Iterable[T], label: str, progress: bool) -> tqdm[T]:
    """A progress bar that leaves nothing behind; silent without `progress`."""
    return tqdm(items, desc=label, leave=False, disable=not progress, dynamic_ncols=True)


def record(
    model: nn.Module,
    data: Data,
    source: Source,
    *,
    cache: Path | None,
    label: str,
    progress: bool,
    like: Recording | None = None,
    groups: Tensor | None = None,
) -> Recording:
    """Run the model once over the data and keep the rows, in memory or in the directory `cache`.

    The first batch shows where features are read and how outputs are shaped, unless rows `like` these tell. Rows belong
    to the `groups` (N,) where they are given; else positions of maps and sequences belong to their row of the data.
    """
    disk = None if cache is None else DiskTable.open(cache, _identity(model, source))
    tap, layout, inputs = _remembered(model, source, disk) if like is None else (like.tap, like.layout, 0)
    parts: list[Rows] = []
    batches = _owned(bar(labelled(data, source.batch_size), label, progress), groups, label)
    number = -1
    for number, (batch, owners) in enumerate(batches):
        inputs = len(batch.args)
        fingerprint = "" if disk is None else digest([*batch.tensors(), *([] if groups is None else [owners])])
        if disk is not None and disk.holds(fingerprint):
            continue
        on_device = batch.to(model)
        if tap is None or layout is None:
            tap, reading = open_tap(model, source.layer, on_device, source.output_key, context=source.context)
            layout = layout_of(tap, reading, source.task)
        else:
            reading = tap(*on_device.args, **on_device.kwargs)
        own = None if groups is None and not layout.dense else owners
        rows = rows_of(layout, reading, on_device, source, number, own)
        if disk is None:
            parts.append(rows)
            continue
        if disk.meta is None:
            disk.start(_meta(tap, layout, inputs, rows))
        disk.append(rows, fingerprint)
    if number < 0 or tap is None or layout is None:
        raise DataError(f"Expected data to fit on, but the {label} data are empty; pass at least two rows.")
    if not (sum(entry["rows"] for entry in disk.journal) if disk else sum(len(part["features"]) for part in parts)):
        raise DataError(
            f"Expected at least two rows with a target, but got none in the {label} data; check the targets."
        )
    joined: Rows = {name: torch.cat([part[name] for part in parts]) for name in (parts or [{}])[0]}
    table = disk.finish(layout.dense) if disk else Table.in_memory(joined, layout.dense)
    return Recording(source.task, tap, layout, table, inputs)


def _owned(batches: Iterable[Batch], groups: Tensor | None, label: str) -> Iterator[tuple[Batch, Tensor]]:
    """Every batch with the numbers of the groups that its rows belong to: the `groups`, or else each its own."""
    rows = 0
    for batch in batches:
        assert batch.target is not None
        start, rows = rows, rows + len(batch.target)
        if groups is not None and rows > len(groups):
            check_count(groups, rows, label, more=True)
        yield batch, torch.arange(start, rows) if groups is None else groups[start:rows]
    if groups is not None:
        check_count(groups, rows, label)


def layout_of(tap: Tap, reading: Reading, task: Task) -> Layout:
    """How the features and the output of a first batch are shaped."""
    last = [tap.channels_last(place, value.dim()) for place, value in enumerate(reading.features)]
    return Layout.infer(reading.features, last, reading.output, task.squeezable)


@dataclass(frozen=True)
class Columns:
    """Columns of a batch in canonical form, (N, M) or (N, M, P), and which rows and positions have a target."""

    values: Rows
    valid: Tensor

    def rows(self) -> Rows:
        """The rows that have a target."""
        return {name: values[self.valid].cpu() for name, values in self.values.items()}

    def drawn(self, positions: int, number: int) -> Rows:
        """Rows at some positions of every map that have a target, drawn at random by the `number` of the batch."""
        generator = torch.Generator().manual_seed(number)
        draws = torch.rand(self.valid.shape, generator=generator, dtype=torch.float32).to(self.valid.device)
        keys, chosen = (draws + 2 * ~self.valid).topk(min(positions, draws.shape[1]), largest=False)
        kept = (keys < 2).flatten()

        def pick(values: Tensor) -> Tensor:
            index = chosen.unsqueeze(1).expand(-1, values.shape[1], -1)
            return values.gather(2, index).movedim(1, 2).flatten(0, 1)[kept].cpu()

        return {name: pick(values) for name, values in self.values.items()}


def _columns(layout: Layout, reading: Reading, target: Tensor, task: Task, owners: Tensor | None = None) -> Columns:
    """Features and what the task keeps of outputs and targets, and the groups of rows (N,), where they are in groups.

    An error where a number is not finite.
    """
    if not torch.isfinite(reading.output).all():
        raise DataError(
            "Expected finite outputs of the base model, but got NaN or inf; check the model and its inputs."
        )
    targets = task.targets(layout, reading.output, target)
    read: Rows = {"features": layout.features(reading.features)}
    if reading.context is not None:
        read["context"] = reading.context
    if not all(torch.isfinite(values).all() for values in read.values()):
        raise DataError("Expected finite features, but got NaN or inf; check the inputs or choose another layer.")
    if owners is not None:
        valid = targets.valid.unsqueeze(1)
        read["group"] = owners.to(valid.device).reshape(-1, *[1] * (valid.dim() - 1)).expand_as(valid)
    return Columns({**read, **targets.columns}, targets.valid)


def rows_of(
    layout: Layout, reading: Reading, batch: Batch, source: Source, number: int, owners: Tensor | None = None
) -> Rows:
    """Columns of the rows (and, where dense, of some positions) of one batch that have a target.

    Args:
        layout: how features and output are shaped.
        reading: what the tap recorded.
        batch: where the target is.
        source: settings.
        number: of the batch; positions of dense outputs are drawn by it.
        owners: (N,) numbers of the groups that its rows belong to, if they belong to any.
    """
    assert batch.target is not None
    columns = _columns(layout, reading, batch.target, source.task, owners)
    if not layout.dense:
        return columns.rows()
    columns.values["features"] = layout.nearest(columns.values["features"], reading.output)
    columns.values["place"] = layout.places(reading.output).float().expand(len(reading.output), -1, -1)
    return columns.drawn(source.positions, number)


def _identity(model: nn.Module, source: Source) -> dict[str, Any]:
    return {
        "model": model_fingerprint(model),
        "layer": layer_name(model, source.layer),
        "output_key": source.output_key,
        "positions": source.positions,
        "targets": source.task.kind,
    } | ({"context": True} if source.context else {})


def _meta(tap: Tap, layout: Layout, inputs: int, rows: Rows) -> dict[str, Any]:
    columns = {name: (values.shape[1], str(values.dtype).removeprefix("torch.")) for name, values in rows.items()}
    return {
        "columns": columns,
        "names": tap.names,
        "context": tap.context,
        "reason": tap.reason,
        "layout": dataclasses.asdict(layout),
        "inputs": inputs,
    }


def _remembered(model: nn.Module, source: Source, disk: DiskTable | None) -> tuple[Tap | None, Layout | None, int]:
    """Tap and layout of a cache that was begun before; nothing for a new one."""
    if disk is None or disk.meta is None:
        return None, None, 0
    meta = disk.meta
    if meta["layout"]["dense"] and "group" not in meta["columns"]:
        raise CacheError(
            f"Expected a feature cache that knows the image of every position, but {disk.directory} was recorded by an "
            "earlier version; delete it or name another directory."
        )
    names = tuple(meta["names"])
    function = None if names else source.layer
    assert function is None or callable(function)
    tap = Tap(model, names, function, meta["reason"], source.output_key, tuple(meta.get("context", ())))
    saved = meta["layout"]
    return tap, Layout(tuple(saved["last"]), saved["dense"], saved["axis"]), int(meta["inputs"])
