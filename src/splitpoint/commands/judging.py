"""``splitpoint verdict``: one page that says whether the uncertainty of a predictor can be trusted."""

from __future__ import annotations

import argparse
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from splitpoint import runtime, verdicts
from splitpoint.commands.batches import Batches
from splitpoint.commands.columns import Columns, some_of
from splitpoint.commands.opened import batch_of, columns_of, destination, names_of, opened, recorded, rows_of
from splitpoint.errors import SettingsError
from splitpoint.files import write_text
from splitpoint.tasks import TaskName


class Judged(NamedTuple):
    """What is said of a predictor, and which figures miss what they have to reach."""

    text: str
    missed: str


def judge(options: argparse.Namespace) -> Judged:
    """Write the page."""
    out = destination(options.out, (".html",))
    record = None if options.json is None else destination(options.json, (".json",))
    least = least_figures(options.fail_under or ())
    subject = _subject(options)
    test = _rows(subject, options.data, options)
    if not test.columns.targets:
        raise SettingsError(
            f"Expected the column to compare with in --target, but got none; {test.table.path} has "
            f"{some_of(test.table.names)}."
        )
    more: dict[str, Any] = {"progress": not options.quiet}
    for name in ("train", "calibration", "ood"):
        path = getattr(options, name)
        if path is not None:
            more[name] = _rows(subject, path, options, labelled=name != "ood")
    verdict = verdicts.verdict(subject.predictor, test, **more)
    verdict.save(out)
    if record is not None:
        write_text(record, json.dumps(verdict.to_dict(), indent=1))
    return Judged(f"{verdict}\n{out}", missed_figures(verdict.figures, least, out))


class Subject(NamedTuple):
    """A predictor, or a graph of one, with its task and the columns that it was fitted on."""

    predictor: Any
    task: TaskName
    columns: Columns | None


def _subject(options: argparse.Namespace) -> Subject:
    if Path(options.predictor).suffix == ".onnx":
        if options.device is not None:
            raise SettingsError(
                f"Expected --device with a predictor that splitpoint fit wrote, but {options.predictor} is a graph, "
                "which runs on the CPU; leave it out."
            )
        graph = runtime.load(options.predictor)
        return Subject(graph, graph.task, recorded(graph.metadata["predictor"]["notes"]))
    uq = opened(options.predictor, options.model, options.weights, options.device)
    return Subject(uq, uq.task.name, recorded(uq.notes))


def _rows(subject: Subject, path: str, options: argparse.Namespace, *, labelled: bool = True) -> Batches:
    table = rows_of(path, like=subject.columns)
    targets = names_of(options.target) if labelled else None
    columns = columns_of(subject.columns, subject.task, table, names_of(options.features), targets)
    columns = columns if labelled else replace(columns, targets=())
    return Batches(table, columns, batch_of(columns, options.batch))


def least_figures(texts: Sequence[str]) -> dict[str, float]:
    """What figures have to reach.

    >>> least_figures(["coverage=.93"])
    {'coverage': 0.93}
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError as error:
            raise SettingsError(
                f"Expected --fail-under figure=number, such as coverage=.93, but got {text!r}."
            ) from error
    return found


def missed_figures(figures: Mapping[str, float], least: Mapping[str, float], page: Path) -> str:
    """A sentence about the figures that are too low, or are not known; nothing where all are reached."""
    unknown = [name for name in least if name not in figures]
    if unknown:
        raise SettingsError(
            f"Expected --fail-under with figures of the verdict, but got {', '.join(unknown)}; "
            f"{_near(unknown[0], figures)}--json FILE lists them all."
        )
    low = [
        f"{name} of at least {value:g}, but got {_shown(figures[name])}"
        for name, value in least.items()
        if not figures[name] >= value
    ]
    return f"Expected {'; '.join(low)}; see {page}." if low else ""


def _near(name: str, figures: Mapping[str, float]) -> str:
    near = difflib.get_close_matches(name, figures, 1)
    return f"did you mean {near[0]}? " if near else ""


def _shown(value: float) -> str:
    return "none that could be measured" if math.isnan(value) else f"{value:.4g}"
