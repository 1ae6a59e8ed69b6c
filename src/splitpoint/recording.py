"""One pass of the frozen model over the data: every row's features and what the heads are trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batches import Batch, Data, labelled
from splitpoint.cache import Collector, Table
from splitpoint.errors import CacheError, DataError, ShapeError
from splitpoint.features import Reading, Tap, branches_of, open_tap
from splitpoint.files import digest, model_fingerprint
from splitpoint.groups import Groups, check_count, group_ids
from splitpoint.layer_setting import LayerSpec, layer_name
from splitpoint.layout import Layout
from splitpoint.tasks import Rows, Task
from splitpoint.tensors import numbers

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
        images: whether whole maps and sequences are described too, by all layers that are read and, where `layer` is
            None, by others before the last one.
    """

    task: Task
    layer: LayerSpec
    output_key: str | int | None
    batch_size: int
    positions: int
    context: bool = False
    images: bool = False


class Images(NamedTuple):
    """Vectors of whole maps or sequences, in the column ``features``: of several layers, with these widths."""

    table: Table
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """Recorded rows: features, outputs and targets of a model, and where they were read.

    Attributes:
        task: how outputs and targets were read.
        tap: where the features came from; None for rows without a model.
        layout: how outputs of the model are shaped.
        table: the rows.
        inputs: number of positional arguments of the model.
        images: of a dense output, what tells of every map or sequence as a whole; None where that is not asked.
        unseen: inputs of the model that its output depends on, but not what is read of it; see `unseen_inputs`.
    """

    task: Task
    tap: Tap | None
    layout: Layout
    table: Table
    inputs: int
    images: Images | None = None
    unseen: tuple[str, ...] = ()

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
        given = zip((features, outputs, targets), ("features", "outputs", "targets"), strict=True)
        table, answers, wanted = (numbers(values, name) for values, name in given)
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
    def parts(self) -> tuple[int, ...]:
        """Numbers of features of the branches that are read; empty where there are none."""
        return () if self.tap is None else tuple(branch.width for branch in self.tap.branches)

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
    identity = _identity(model, source)
    rows = Collector(cache, identity)
    tap, layout, inputs, widths, unseen = _remembered(model, source, rows)
    if like is not None:
        tap, layout, widths = like.tap, like.layout, None if like.images is None else like.images.widths
    images = Collector(_beside(cache), identity) if widths else None
    batches = _owned(bar(labelled(data, source.batch_size), label, progress), groups, label)
    number = -1
    for number, (batch, owners) in enumerate(batches):
        fingerprint = "" if cache is None else digest([*batch.tensors(), *([] if groups is None else [owners])])
        held = [own.holds(fingerprint) for own in (rows, images) if own is not None]
        if all(held):
            continue
        on_device = batch.to(model)
        inputs = len(on_device.args)
        if tap is None or layout is None:
            stages = source.task.squeezable if source.images else None
            tap, reading = open_tap(
                model, source.layer, on_device, source.output_key, context=source.context, stages=stages
            )
            layout, unseen = layout_of(tap, reading, source.task), unseen_inputs(tap, on_device, reading)
            if layout.dense and source.images:
                widths = tuple(vector.shape[1] for vector in _vectors(layout, reading))
                images = Collector(_beside(cache), identity)
                images.holds(fingerprint)
        else:
            reading = tap(*on_device.args, **on_device.kwargs)
        _check_complete(tap, reading, label)
        own = None if groups is None and not layout.dense else owners
        found = rows_of(layout, reading, on_device, source, number, own)
        rows.add(found, fingerprint, _facts(tap, layout, inputs, widths, unseen))
        if images is not None:
            images.add({"features": _checked(torch.cat(_vectors(layout, reading), 1)).cpu()}, fingerprint, {})
    if number < 0 or tap is None or layout is None:
        raise DataError(f"Expected data to fit on, but the {label} data are empty; pass at least two rows.")
    if not rows.rows:
        raise DataError(
            f"Expected at least two rows with a target, but got none in the {label} data; check the targets."
        )
    whole = None if images is None or widths is None else Images(images.finish(), widths)
    return Recording(source.task, tap, layout, rows.finish(layout.dense), inputs, whole, unseen)


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


def _check_complete(tap: Tap, reading: Reading, label: str) -> None:
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


@dataclass(frozen=True)
class Columns:
    """Columns of a batch in canonical form, (N, M) or (N, M, P), and which rows and positions have a target."""

    values: Rows
    valid: Tensor

    def rows(self) -> Rows:
        """The rows that have a target."""
        return {name: values[self.valid].cpu() for name, values in self.values.items()}

    def drawn(self, positions: int, number: int, features: Callable[[Tensor], Tensor] | None = None) -> Rows:
        """Rows at some positions of every map that have a target, drawn at random by the `number` of the batch.

        Args:
            positions: most positions of a map.
            number: of the batch.
            features: those (N, C, K) at some positions (N, K), so that no others are ever worked out.
        """
        generator = torch.Generator().manual_seed(number)
        draws = torch.rand(self.valid.shape, generator=generator, dtype=torch.float32).to(self.valid.device)
        keys, chosen = (draws + 2 * ~self.valid).topk(min(positions, draws.shape[1]), largest=False)
        kept = (keys < 2).flatten()
        found: Rows = {} if features is None else {"features": features(chosen)}
        for name, values in self.values.items():
            found[name] = values.gather(2, chosen.unsqueeze(1).expand(-1, values.shape[1], -1))
        return {name: values.movedim(1, 2).flatten(0, 1)[kept].cpu() for name, values in found.items()}


def _columns(layout: Layout, reading: Reading, target: Tensor, task: Task, owners: Tensor | None = None) -> Columns:
    """What the task keeps of outputs and targets, features of rows, and groups (N,) of rows that are in groups.

    An error where a number is not finite.
    """
    if not torch.isfinite(reading.output).all():
        raise DataError(
            "Expected finite outputs of the base model, but got NaN or inf; check the model and its inputs."
        )
    targets = task.targets(layout, reading.output, target)
    read: Rows = {} if layout.dense else {"features": layout.features(reading.features)}
    if reading.context is not None:
        read["context"] = reading.context
    for values in reading.features if layout.dense else read.values():
        _checked(values)
    if owners is not None:
        valid = targets.valid.unsqueeze(1)
        read["group"] = owners.to(valid.device).reshape(-1, *[1] * (valid.dim() - 1)).expand_as(valid)
    return Columns({**read, **targets.columns}, targets.valid)


def _checked(features: Tensor) -> Tensor:
    """The same, or an error where a number is not finite."""
    if not torch.isfinite(features).all():
        raise DataError("Expected finite features, but got NaN or inf; check the inputs or choose another layer.")
    return features


def _vectors(layout: Layout, reading: Reading) -> list[Tensor]:
    """What tells of every image or sequence as a whole: a vector (N, W) a layer, the last one's at the end."""
    return [*reading.stages, *layout.bands(reading.features)]


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
    columns.values["place"] = layout.places(reading.output).float().expand(len(reading.output), -1, -1)
    return columns.drawn(source.positions, number, lambda at: layout.at(reading.features, reading.output, at))


def _identity(model: nn.Module, source: Source) -> dict[str, Any]:
    return {
        "model": model_fingerprint(model),
        "layer": layer_name(model, source.layer),
        "output_key": source.output_key,
        "positions": source.positions,
        "targets": source.task.kind,
    } | ({"context": True} if source.context else {})


def _beside(cache: Path | None) -> Path | None:
    """Where vectors of whole images are kept."""
    return None if cache is None else cache / "images"


def _facts(
    tap: Tap, layout: Layout, inputs: int, widths: tuple[int, ...] | None, unseen: tuple[str, ...]
) -> dict[str, Any]:
    """What a cache tells of its rows."""
    return {
        "names": tap.names,
        "context": tap.context,
        "stages": tap.stages,
        "branches": [dataclasses.astuple(branch) for branch in tap.branches],
        "unseen": unseen,
        "reason": tap.reason,
        "layout": dataclasses.asdict(layout),
        "inputs": inputs,
        "widths": widths,
    }


def _remembered(
    model: nn.Module, source: Source, rows: Collector
) -> tuple[Tap | None, Layout | None, int, tuple[int, ...] | None, tuple[str, ...]]:
    """Tap, layout, inputs, widths and unseen inputs of a cache that was begun before; nothing for a new one."""
    disk = rows.disk
    if disk is None or disk.meta is None:
        return None, None, 0, None, ()
    meta = disk.meta
    if meta["layout"]["dense"] and "group" not in meta["columns"]:
        raise CacheError(
            f"Expected a feature cache that knows the image of every position, but {disk.directory} was recorded by an "
            "earlier version; delete it or name another directory."
        )
    names = tuple(meta["names"])
    function = None if names else source.layer
    assert function is None or callable(function)
    context, stages = (tuple(meta.get(key, ())) for key in ("context", "stages"))
    tap = Tap(model, names, function, meta["reason"], source.output_key, context, stages, branches_of(meta))
    saved, widths = meta["layout"], meta.get("widths")
    layout = Layout(tuple(saved["last"]), saved["dense"], saved["axis"])
    return tap, layout, int(meta["inputs"]), tuple(widths) if widths else None, tuple(meta.get("unseen", ()))
