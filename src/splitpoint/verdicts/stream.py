"""Data through what is judged, each batch once: what is measured needs no more than what comes out here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint.batches import Batch, Data, labelled, unlabelled
from splitpoint.errors import DataError
from splitpoint.prediction import Prediction
from splitpoint.recording import bar
from splitpoint.verdicts.subject import Subject


@dataclass(frozen=True, eq=False)
class Seen:
    """A batch and what was said about it, on the CPU.

    Attributes:
        prediction: of its N rows.
        target: as in the data; None where it was not asked for.
        key: (N,) digests of inputs and target, see `keys`.
        energy: (N,) free energy of the logits, None where it was not asked for or the model has none.
        batch: what went into the predictor, on its device.
    """

    prediction: Prediction
    target: Tensor | None
    key: Tensor
    energy: Tensor | None
    batch: Batch


def seen(subject: Subject, data: Data, what: str, *, targets: bool, energy: bool, progress: bool) -> Iterator[Seen]:
    """Every batch of `data` with its prediction; `what` names the data for people."""
    rows = subject.method.rows_per_call
    batches: Iterable[Batch] = labelled(data, rows) if targets else unlabelled(data, rows, subject.inputs)
    found = False
    for batch in bar(batches, f"verdict: {what}", progress):
        moved, prediction, free = subject.answer(batch, energy)
        found, target = True, None if batch.target is None else batch.target.cpu()
        yield Seen(prediction, target, keys(moved, len(prediction)), free, moved)
    if not found:
        raise DataError(f"Expected {what} rows, but got none; pass at least one.")


def keys(batch: Batch, rows: int) -> Tensor:
    """(N,) integers, equal for rows of equal inputs and target, whatever precision they are stored in."""
    parts = [part for part in [*batch.inputs().values(), batch.target] if part is not None and part.dim()]
    arrays = [_plain(part).reshape(rows, -1).numpy() for part in parts if len(part) == rows]
    found = [
        int.from_bytes(
            hashlib.blake2b(b"".join(array[row].tobytes() for array in arrays), digest_size=8).digest(), "big"
        )
        for row in range(rows)
    ]
    return torch.tensor([value - (1 << 63) for value in found], dtype=torch.long)


def _plain(values: Tensor) -> Tensor:
    values = values.detach().cpu()
    if values.is_floating_point():
        return (values.float() + 0.0).contiguous()  # one zero in place of two
    return values.to(torch.complex64 if values.is_complex() else torch.float64).contiguous()
