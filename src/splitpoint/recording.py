"""One pass of the frozen model over the data: every row's features and what the heads are trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batch_rows import checked, columns_of, rows_of, vectors_of
from splitpoint.batches import Batch, Data, labelled, placement
from splitpoint.cache import Table
from splitpoint.collector import Collector
from splitpoint.disk_table import alone_in
from splitpoint.errors import DataError, ShapeError
from splitpoint.features import Reading, Tap
from splitpoint.files import digest, model_fingerprint
from splitpoint.fingerprint import Fingerprint
from splitpoint.groups import Groups, check_count, group_ids
from splitpoint.layer_setting import LayerSpec, layer_name
from splitpoint.layout import Layout
from splitpoint.likeness import Likeness
from splitpoint.opening import Opening, check_complete
from splitpoint.tasks import Rows, Task
from splitpoint.tensors import numbers
from splitpoint.wrappers import unwrapped

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
        fingerprint: of the model as it was; None for rows without one.
    """

    task: Task
    tap: Tap | None
    layout: Layout
    table: Table
    inputs: int
    images: Images | None = None
    unseen: tuple[str, ...] = ()
    fingerprint: Fingerprint | None = None

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
        rows = columns_of(ROWS, Reading(answers, [table]), wanted, task, owners).rows()
        if not len(rows["features"]):
            raise DataError("Expected at least two rows with a target, but got none; check the targets.")
        places = 1 if tap is None else max(len(tap.names), 1)
        own, known = layout or Layout((False,) * places, False, 1), None if tap is None else Fingerprint.at(tap, None)
        return Recording(task, tap, own, Table.in_memory(rows), 1, fingerprint=known)

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
    Rows that the directory has are not made again, but those of the first batch are, to see that the model behaves as
    it did. What wraps a model, such as `torch.compile`, is seen through.
    """
    model = unwrapped(model)
    with nullcontext() if cache is None else alone_in(cache), closing(_Kept(model, source, cache)) as kept:
        opening = kept.opening(model, source) if like is None or like.tap is None else _opening_of(like, like.tap)
        if opening is not None and opening.widths:
            kept.add_images()
        batches = _owned(bar(labelled(data, source.batch_size), label, progress), groups, label)
        number, likeness = -1, None
        for number, (batch, owners) in enumerate(batches):
            if number == 0 and like is None:
                likeness = Likeness.of(batch.to(model))
            fingerprint = "" if cache is None else digest([*batch.tensors(), *([] if groups is None else [owners])])
            if kept.hold(fingerprint):
                continue
            on_device = batch.to(model)
            if opening is None:
                opening, reading = Opening.of(model, source, on_device)
                if opening.widths:
                    kept.add_images(fingerprint)
            else:
                reading = opening.tap(*on_device.args, **on_device.kwargs)
            check_complete(opening.tap, reading, label)
            own = None if groups is None and not opening.layout.dense else owners
            rows = rows_of(opening.layout, reading, on_device.target, source.task, source.positions, number, own)
            kept.add(rows, reading, opening, fingerprint)
        if number < 0 or opening is None:
            raise DataError(f"Expected data to fit on, but the {label} data are empty; pass at least two rows.")
        if not kept.rows.rows:
            raise DataError(
                f"Expected at least two rows with a target, but got none in the {label} data; check the targets."
            )
        known = Fingerprint.at(opening.tap, likeness) if like is None else like.fingerprint
        return replace(kept.recording(source.task, opening), fingerprint=known)


def _opening_of(like: Recording, tap: Tap) -> Opening:
    """How rows of a recording were read."""
    return Opening(tap, like.layout, like.inputs, None if like.images is None else like.images.widths, like.unseen)


class _Kept:
    """Rows of a recording as they come, and of maps and sequences what tells of each as a whole."""

    def __init__(self, model: nn.Module, source: Source, cache: Path | None) -> None:
        self.cache, self.identity = cache, _identity(model, source)
        self.place = f"{placement(model)[0].type}, torch {torch.__version__}"
        self.rows = Collector(cache, self.identity, self.place)
        self.images: Collector | None = None

    def opening(self, model: nn.Module, source: Source) -> Opening | None:
        """How the rows that are there were read."""
        disk = self.rows.disk
        return None if disk is None or disk.meta is None else Opening.remembered(model, source, disk.meta)

    def add_images(self, fingerprint: str | None = None) -> None:
        """Keep what tells of whole maps too, from the batch with this fingerprint on."""
        beside = None if self.cache is None else self.cache / "images"
        self.images = Collector(beside, self.identity, self.place)
        if fingerprint is not None:
            self.images.holds(fingerprint)

    def hold(self, fingerprint: str) -> bool:
        """Whether the next batch is there and the model need not run for it."""
        held = [own.holds(fingerprint) for own in (self.rows, self.images) if own is not None]
        return all(held) and self.rows.suffices

    def add(self, rows: Rows, reading: Reading, opening: Opening, fingerprint: str) -> None:
        """Keep the rows of this batch, unless they are there."""
        self.rows.add(rows, fingerprint, opening.facts())
        if self.images is not None:
            whole = checked(torch.cat(vectors_of(opening.layout, reading), 1)).cpu()
            self.images.add({"features": whole}, fingerprint, {})

    def recording(self, task: Task, opening: Opening) -> Recording:
        """The finished recording."""
        tap, layout, inputs, widths, unseen = opening
        whole = None if self.images is None or widths is None else Images(self.images.finish(), widths)
        return Recording(task, tap, layout, self.rows.finish(layout.dense), inputs, whole, unseen)

    def close(self) -> None:
        """Keep what is written."""
        for own in (self.rows, self.images):
            if own is not None:
                own.close()


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


def _identity(model: nn.Module, source: Source) -> dict[str, Any]:
    return {
        "model": model_fingerprint(model),
        "layer": layer_name(model, source.layer),
        "output_key": source.output_key,
        "positions": source.positions,
        "targets": source.task.kind,
    } | ({"context": True} if source.context else {})
