"""Made-up tables in the true form: archives and workbooks, files in a data folder and the entries they need."""

import io
import zipfile

import numpy as np
import openpyxl
import torch

from splitpoint.datasets.arrays import array_checksum, rows_checksum
from splitpoint.datasets.entry import TableEntry


def checksums_of(arrays):
    """The checksums that the entry of a table of these arrays has."""
    each = {key: array_checksum(value) for key, value in arrays.items()}
    return each | {"rows": rows_checksum(list(arrays.values()))}


def zipped(**members):
    """Bytes of a zip archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def workbook(*sheets):
    """Bytes of an Excel workbook whose sheets have these rows."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for rows in sheets:
        sheet = book.create_sheet()
        for row in rows:
            sheet.append(row)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def made_up_table(folder, name, title=None):
    """Write 400 rows of three features with a noisy linear target around 100; returns the entry."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 3, generator=generator).double()
    y = 100 + 30 * (x[:, :1] - x[:, 1:2] + 0.2 * torch.randn(400, 1, generator=generator))
    arrays = {"X": x.numpy(), "y": y[:, 0].numpy()}
    entry = TableEntry(
        name=name,
        title=title or name,
        sources=(),
        licence="none",
        rows=400,
        features=3,
        targets=("target",),
        checksums=checksums_of(arrays),
        reader=lambda _: [],
    )
    path = folder / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return entry
