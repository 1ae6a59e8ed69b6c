"""``splitpoint predict``: rows in, predictions out as they come; memory is bounded by a batch."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from tqdm import tqdm

from splitpoint.commands.columns import Columns, some_of
from splitpoint.commands.fields import Written, as_columns, chosen_fields, flagged_in
from splitpoint.commands.folders import FILE, ImageFolder
from splitpoint.commands.model import answers
from splitpoint.commands.opened import batch_of, columns_of, destination, names_of, opened, recorded, rows_of
from splitpoint.commands.tables import Part, Table
from splitpoint.commands.writing import RowFile
from splitpoint.errors import DataError
from splitpoint.files import replacing
from splitpoint.predictor import Predictor

ENDINGS = (".parquet", ".csv")


def predict(options: argparse.Namespace) -> str:
    """Write one row for every row, and say how many."""
    out = destination(options.out, ENDINGS)
    uq = opened(options.predictor, options.model, options.weights, options.device)
    known = recorded(uq.notes)
    table = rows_of(options.data, like=known)
    columns = columns_of(known, uq.task.name, table, names_of(options.features))
    columns.check(table)
    copied = _copied(table, options.id)
    fields = chosen_fields(uq.task.name, options.fields, uq.reference is not None)
    size, flagged = batch_of(columns, options.batch), 0
    answers(uq.base, columns.inputs(table.beginning(columns.features, 1)))  # a model that takes other rows says so here
    with replacing(out) as draft, RowFile(draft, out.suffix) as file:
        for part, written in _scored(uq, table, columns, fields, copied, size, progress=not options.quiet):
            both = set(copied) & set(written)
            if both:
                raise DataError(f"Expected --id columns with other names than {some_of(sorted(both))}; rename them.")
            file.add({name: part.copied(name) for name in copied} | written)
            flagged += flagged_in(written)
    share = f", {flagged / file.rows:.1%} of them flagged" if "flagged" in fields else ""
    return f"{out}: {file.rows:,} rows, {file.columns} columns{share}"


def _copied(table: Table, named: Sequence[str] | None) -> list[str]:
    """Columns that are copied: those that are named, and the paths of images."""
    copied = [FILE] if isinstance(table, ImageFolder) else []
    for name in named or ():
        if name not in table.names:
            raise DataError(
                f"Expected columns to copy with --id, but {table.path} has no {name!r}; it has {some_of(table.names)}."
            )
        copied.append(name)
    return list(dict.fromkeys(copied))


def _scored(
    uq: Predictor[Any],
    table: Table,
    columns: Columns,
    fields: Sequence[str],
    copied: Sequence[str],
    size: int,
    progress: bool,
) -> Iterator[tuple[Part, Written]]:
    """Parts of the table and what is written of them."""
    waiting: deque[Part] = deque()

    def inputs() -> Iterator[tuple[Tensor]]:
        for part in table.parts(list(dict.fromkeys([*columns.features, *copied])), size):
            waiting.append(part)
            yield (columns.inputs(part),)

    with tqdm(desc="predicting", total=table.rows, unit=" rows", leave=False, disable=not progress) as bar:
        for prediction in uq.stream(inputs()):
            part = waiting.popleft()
            yield part, as_columns(prediction, fields, columns)
            bar.update(part.rows)
