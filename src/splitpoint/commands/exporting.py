"""``splitpoint export``: model and heads as one graph."""

from __future__ import annotations

import argparse
import io
from typing import Any

from splitpoint import export as graphs
from splitpoint.commands.opened import columns_of, destination, names_of, opened, recorded, rows_of
from splitpoint.errors import DataError
from splitpoint.files import replacing

EXAMPLE = 8
"""Rows of the example, at most."""


def export(options: argparse.Namespace) -> str:
    """Write the graph and say how far its answers are from those of the predictor."""
    out = destination(options.out, (f".{options.format}",))
    uq: Any = opened(options.predictor, options.model, options.weights)
    known = recorded(uq.notes)
    table = rows_of(options.example, like=known)
    columns = columns_of(known, uq.task.name, table, names_of(options.features))
    columns.check(table)
    example = columns.inputs(table.beginning(columns.features, EXAMPLE))
    if len(example) < 2:
        raise DataError(f"Expected an example of two rows or more, but {table.path} has one; give another --example.")
    if options.format == "onnx":
        worst = graphs.onnx(uq, out, example)
        return f"{out}: {out.stat().st_size / 1000:,.0f} kB, answers within {worst:.1e} of the predictor's"
    from torch.export import save

    written = io.BytesIO()
    save(graphs.program(uq, example), written)
    with replacing(out) as draft:
        draft.write_bytes(written.getvalue())
    return f"{out}: {out.stat().st_size / 1000:,.0f} kB"
