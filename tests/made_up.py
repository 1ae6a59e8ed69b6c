"""A made-up table in the true form: a file in a data folder, and the entry that `SETS` needs for it."""

import numpy as np
import torch

from splitpoint.datasets.arrays import array_checksum, rows_checksum
from splitpoint.datasets.entry import TableEntry


def made_up_table(folder, name, title=None):
    """Write 400 rows of three features with a noisy linear target around 100; returns the entry."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 3, generator=generator).double()
    y = 100 + 30 * (x[:, :1] - x[:, 1:2] + 0.2 * torch.randn(400, 1, generator=generator))
    arrays = {"X": x.numpy(), "y": y[:, 0].numpy()}
    checksums = {key: array_checksum(value) for key, value in arrays.items()}
    entry = TableEntry(
        name=name,
        title=title or name,
        sources=(),
        licence="none",
        rows=400,
        features=3,
        targets=("target",),
        checksums=checksums | {"rows": rows_checksum(list(arrays.values()))},
        reader=lambda _: [],
    )
    path = folder / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return entry
