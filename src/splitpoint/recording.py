"""One pass of the frozen model over the data: every row's features and what the heads are trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batches import Batch, Data, labelled
from splitpoint.cache import DiskTable, Table
from splitpoint.errors import DataError
from splitpoint.features import LayerSpec, Tap, layer_name, open_tap
from splitpoint.files import digest, model_fingerprint
from splitpoint.layout import Layout

T = TypeVar("T")


@dataclass(frozen=True)
class Targets:
    """What a method keeps of a batch, in canonical form.

    Attributes:
        columns: by name, (N, M) or (N, M, P).
        valid: (N,) or (N, P), rows and positions that have a target.
    """

    columns: dict[str, Tensor]
    valid: Tensor


@dataclass(frozen=True)
class Source:
    """How rows are read: the settings that `record` needs, the same for training and calibration data.

    Attributes:
        layer: see `features.open_tap`.
        output_key: see `features.Tap`.
        squeezable: least number of axes with which an output may lack a channel axis of size one.
        targets: from (layout, output, target) to `Targets`.
        kind: what the targets depend on beside the data, for the fingerprint of a cache.
        batch_size: rows per call of the model, for data that do not come in batches.
        positions: most positions kept of one row of a dense output, drawn at random (by the batch's number).
    """

    layer: LayerSpec
    output_key: str | int | None
    squeezable: int
    targets: Callable[[Layout, Tensor, Tensor], Targets]
    kind: str
    batch_size: int
    positions: int


@dataclass(frozen=True)
class Recording:
    """Recorded rows, with the tap and the layout they were read with.

    Attributes:
        tap: where the features came from.
        layout: how outputs are shaped.
        table: the rows, with a column ``features``.
        inputs: number of positional arguments of the model.
    """

    tap: Tap
    layout: Layout
    table: Table
    inputs: int


def bar(items: Iterable[T], label: str, progress: bool) -> tqdm[T]:
    """A progress bar that leaves nothing behind; silent without `progress`."""
    return tqdm(items, desc=label, leave=False, disable=not progress, dynamic_ncols=True)


def record(
    model: nn.Module, data: Data, source: Source, *, cache: Path | None, label: str, progress: bool
) -> Recording:
    """Run the model once over the data and keep the rows, in memory or in the directory `cache`."""
    disk = None if cache is None else DiskTable.open(cache, _identity(model, source))
    tap, layout, inputs = _remembered(model, source, disk)
    parts: list[dict[str, Tensor]] = []
    for number, batch in enumerate(bar(labelled(data, source.batch_size), label, progress)):
        inputs = len(batch.args)
        fingerprint = "" if disk is None else digest(batch.tensors())
        if disk is not None and disk.holds(fingerprint):
            continue
        on_device = batch.to(model)
        if tap is None or layout is None:
            tap, output, features = open_tap(model, source.layer, on_device, source.output_key)
            last = [tap.channels_last(place, value.dim()) for place, value in enumerate(features)]
            layout = Layout.infer(features, last, output, source.squeezable)
        else:
            output, features = tap(*on_device.args, **on_device.kwargs)
        rows = rows_of(layout, features, output, on_device, source, number)
        if disk is None:
            parts.append(rows)
            continue
        if disk.meta is None:
            disk.start(_meta(tap, layout, inputs, rows))
        disk.append(rows, fingerprint)
    if tap is None or layout is None:
        raise DataError(f"Expected data to fit on, but the {label} data are empty; pass at least two rows.")
    if not (sum(entry["rows"] for entry in disk.journal) if disk else sum(len(part["features"]) for part in parts)):
        raise DataError(
            f"Expected at least two rows with a target, but got none in the {label} data; check the targets."
        )
    table = disk.finish() if disk else Table.in_memory({k: torch.cat([p[k] for p in parts]) for k in parts[0]})
    table.dense = layout.dense
    return Recording(tap, layout, table, inputs)


def rows_of(
    layout: Layout, features: list[Tensor], output: Tensor, batch: Batch, source: Source, number: int
) -> dict[str, Tensor]:
    """Columns of the rows (and, where dense, of some positions) of one batch that have a target.

    Args:
        layout: how features and output are shaped.
        features: what the tap recorded.
        output: the model's output.
        batch: where the target is.
        source: settings.
        number: of the batch; positions of dense outputs are drawn by it.
    """
    if not torch.isfinite(output).all():
        raise DataError(
            "Expected finite outputs of the base model, but got NaN or inf; check the model and its inputs."
        )
    assert batch.target is not None
    targets = source.targets(layout, output, batch.target)
    columns = {"features": layout.features(features), **targets.columns}
    if not torch.isfinite(columns["features"]).all():
        raise DataError("Expected finite features, but got NaN or inf; check the inputs or choose another layer.")
    if not layout.dense:
        return {name: values[targets.valid].cpu() for name, values in columns.items()}
    columns["features"] = layout.nearest(columns["features"], output)
    generator = torch.Generator().manual_seed(number)
    keys = (
        torch.rand(targets.valid.shape, generator=generator, dtype=torch.float32).to(output.device) + 2 * ~targets.valid
    )
    keys, chosen = keys.topk(min(source.positions, keys.shape[1]), largest=False)
    kept = (keys < 2).flatten()

    def pick(values: Tensor) -> Tensor:
        index = chosen.unsqueeze(1).expand(-1, values.shape[1], -1)
        return values.gather(2, index).movedim(1, 2).flatten(0, 1)[kept].cpu()

    return {name: pick(values) for name, values in columns.items()}


def _identity(model: nn.Module, source: Source) -> dict[str, Any]:
    return {
        "model": model_fingerprint(model),
        "layer": layer_name(model, source.layer),
        "output_key": source.output_key,
        "positions": source.positions,
        "targets": source.kind,
    }


def _meta(tap: Tap, layout: Layout, inputs: int, rows: dict[str, Tensor]) -> dict[str, Any]:
    columns = {name: (values.shape[1], str(values.dtype).removeprefix("torch.")) for name, values in rows.items()}
    return {
        "columns": columns,
        "names": tap.names,
        "reason": tap.reason,
        "layout": dataclasses.asdict(layout),
        "inputs": inputs,
    }


def _remembered(model: nn.Module, source: Source, disk: DiskTable | None) -> tuple[Tap | None, Layout | None, int]:
    """Tap and layout of a cache that was begun before; nothing for a new one."""
    if disk is None or disk.meta is None:
        return None, None, 0
    meta = disk.meta
    names = tuple(meta["names"])
    function = None if names else source.layer
    assert function is None or callable(function)
    tap = Tap(model, names, function, meta["reason"], source.output_key)
    saved = meta["layout"]
    return tap, Layout(tuple(saved["last"]), saved["dense"], saved["axis"]), int(meta["inputs"])
