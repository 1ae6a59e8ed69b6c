"""Scores of classifiers beside free ones, on the cells of `development.py`: foreign inputs and wrong answers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import splitpoint as sp
from development_cell import Cell, Rows
from splitpoint.metrics import auroc

NEIGHBOUR = 10
"""Which nearest training row the distance of the rival "kNN" is to."""

FREE = ("energy", "max-probability", "entropy")
"""Scores that need no fit."""


@dataclass(frozen=True)
class ClassFit:
    """How one fit on a cell turned out.

    Attributes:
        cell: name of the cell.
        per_class: most training rows of a class; 0 for all of them.
        calibrated: whether half of the test rows served calibration.
        seed: of the rows.
        rows: training rows.
        foreign: by foreign set the AUROC of every score, and by "caught" that share of the set which the score flags
            with 5% false alarms.
        errors: AUROC of wrong answers by `total` and entropy; None where fewer than 20 test rows are wrong.
        checks: what the fit said of itself.
    """

    cell: str
    per_class: int
    calibrated: bool
    seed: int
    rows: int
    foreign: dict[str, dict[str, float]]
    errors: dict[str, float] | None
    checks: tuple[sp.Check, ...]


def fits(name: str, cell: Cell, sizes: Sequence[int], seeds: Sequence[int]) -> Iterator[ClassFit]:
    """Fits of the default classifier on some of the training rows, with calibration rows and without."""
    for per_class in sizes:
        for calibrated in (False, True):
            for seed in seeds if per_class else seeds[:1]:
                yield one(name, cell, per_class, calibrated, seed)


def one(name: str, cell: Cell, per_class: int, calibrated: bool, seed: int) -> ClassFit:
    """One fit; half of the test rows, drawn by the seed, calibrate where asked for, and the other half is judged."""
    train = some(cell.train, chosen(cell.train, per_class, seed))
    order = np.random.default_rng(seed).permutation(len(cell.test.features))
    held, judged = some(cell.test, order[: len(order) // 2]), some(cell.test, order[len(order) // 2 :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.SplitPointWarning)
        uq = sp.SplitPointClassifier().fit_rows(
            recorded(train), calibration=recorded(held) if calibrated else None, seed=seed, progress=False
        )
    inside = scores(uq, train, judged)
    foreign = {}
    for which, rows in cell.foreign.items():
        outside = scores(uq, train, rows)
        foreign[which] = {score: auroc(inside[score], outside[score]) for score in RANKED}
        foreign[which] |= {f"caught {score}": caught(inside[score], outside[score]) for score in RANKED}
    assert judged.label is not None
    wrong = inside["label"] != torch.from_numpy(judged.label)
    known = min(int(wrong.sum()), int((~wrong).sum())) >= 20
    errors = {score: auroc(inside[score][~wrong], inside[score][wrong]) for score in ("total", "own entropy")}
    errors["entropy"] = auroc(inside["entropy"][~wrong], inside["entropy"][wrong])
    return ClassFit(
        name, per_class, calibrated, seed, len(train.features), foreign, errors if known else None, uq.checks
    )


RANKED = ("support", *FREE, "kNN")


def scores(uq: sp.ClassificationPredictor, train: Rows, rows: Rows) -> dict[str, Tensor]:
    """Every score of some rows, larger for less trust, and the label that is predicted."""
    out = uq.predict_rows(rows.features, rows.logits)
    assert isinstance(out, sp.ClassificationPrediction)
    logits = torch.from_numpy(rows.logits).double()
    log_probs = logits.log_softmax(1)
    return {
        "support": out.support,
        "total": out.total,
        "own entropy": out.aleatoric,
        "label": out.label,
        "energy": -logits.logsumexp(1),
        "max-probability": -log_probs.amax(1),
        "entropy": -(log_probs.exp() * log_probs).sum(1),
        "kNN": neighbour(train, rows),
    }


def caught(inside: Tensor, outside: Tensor, alarms: float = 0.05) -> float:
    """Share of foreign rows above the score that a share `alarms` of the rows inside exceeds."""
    return float((outside > inside.double().quantile(1 - alarms)).double().mean())


def neighbour(train: Rows, rows: Rows) -> Tensor:
    """Distance to the tenth nearest training row, features brought to length 1 (Sun et al. 2022)."""
    known, x = (torch.nn.functional.normalize(torch.from_numpy(part.features)) for part in (train, rows))
    return torch.cat([torch.cdist(p, known).kthvalue(min(NEIGHBOUR, len(known)), 1).values for p in x.split(500)])


def recorded(rows: Rows) -> sp.Recording:
    """The rows as a recording without a model."""
    assert rows.label is not None
    return sp.Recording.of(sp.Classification(), rows.features, rows.logits, rows.label)


def some(rows: Rows, places: np.ndarray) -> Rows:
    """Some of the rows."""
    return Rows(rows.features[places], rows.logits[places], None if rows.label is None else rows.label[places])


def chosen(rows: Rows, per_class: int, seed: int) -> np.ndarray:
    """Places of at most `per_class` random rows of every class; of all rows for 0."""
    assert rows.label is not None
    order = np.random.default_rng(seed).permutation(len(rows.label))
    if not per_class:
        return np.arange(len(order))
    kept = [order[rows.label[order] == number][:per_class] for number in np.unique(rows.label)]
    return np.sort(np.concatenate(kept))
