"""``splitpoint fit``: split-point uncertainty for a model and a file of rows, saved with the names of the columns."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from splitpoint.classification import SplitPointClassifier
from splitpoint.commands.batches import Batches
from splitpoint.commands.columns import Columns, chosen_targets, some_of
from splitpoint.commands.model import answers, built, check_trained
from splitpoint.commands.opened import batch_of, destination, names_of, rows_of
from splitpoint.commands.tables import Table
from splitpoint.errors import DataError, SettingsError, SplitPointWarning
from splitpoint.posthoc import PostHocPredictor
from splitpoint.regression import SplitPointRegressor
from splitpoint.tasks import MISSING

FIRST = 1_000
"""Rows on which the model itself is looked at before anything is fitted."""


def fit(options: argparse.Namespace) -> str:
    """Fit, save, and say what was fitted."""
    out = destination(options.out, (".safetensors",))
    _check(options)
    model = built(options.model, options.weights, options.device)
    if options.weights is None:
        check_trained(options.model, model)
    table = rows_of(options.data, options.size)
    columns = _columns(table, options)
    size = batch_of(columns, options.batch)
    seen = _first_look(model, table, columns)
    ordinary = _opened(options.threshold_data, replace(columns, targets=()), size)
    uq = _fitted(options, model, Batches(table, columns, size), _opened(options.calibration, columns, size))
    if ordinary is not None:
        uq.set_threshold(ordinary, progress=not options.quiet)
    uq.notes = columns.notes() | {"model": options.model}
    uq.save(out)
    return "\n".join([*_summary(options, uq, table, columns), seen, _saved(out), *_warnings(uq)])


def _check(options: argparse.Namespace) -> None:
    """Refuse options that the task has no use for."""
    own = {"regression": ("level",), "classification": ("classes", "probs")}
    other = {"regression": "classification", "classification": "regression"}[options.task]
    for name in own[other]:
        if getattr(options, name):
            raise SettingsError(f"Expected --{name} with --task {other}, but the task is {options.task}; leave it out.")


def _columns(table: Table, options: argparse.Namespace) -> Columns:
    targets, groups = names_of(options.target), [options.groups] if options.groups else []
    for name in groups:
        if name not in table.names:
            raise DataError(f"Expected a column {name!r} with --groups, but {table.path} has {some_of(table.names)}.")
    if not chosen_targets(table, targets):
        raise SettingsError(
            f"Expected the column to predict with --target, but got none; {table.path} has {some_of(table.names)}."
        )
    return Columns.of(
        table, options.task, names_of(options.features), targets, names_of(options.classes), without=groups
    )


def _first_look(model: nn.Module, table: Table, columns: Columns) -> str:
    """How well the model does on the first rows, or an error where it does not take them or has other classes."""
    first = table.beginning([*columns.features, *columns.targets], min(FIRST, batch_of(columns, None)))
    output, target = answers(model, columns.inputs(first)).cpu(), columns.wanted(first)
    if columns.task == "classification":
        outputs = max(2, output.shape[1] if output.dim() > 1 else 1)
        if columns.classes and len(columns.classes) != outputs:
            raise DataError(
                f"Expected a name for each of the {outputs} classes of the model, but column {columns.targets[0]!r} "
                f"has {len(columns.classes)}: {some_of(columns.classes)}; name them with --classes, in the order "
                "of the model's outputs."
            )
        said = "the model answers with maps" if output.dim() > 2 else _right(output, target)
    else:
        said = _spread(output, target)
    return f"model:        {said}, first {first.rows:,} rows"


def _right(output: Tensor, target: Tensor) -> str:
    binary = output.dim() == 1 or output.shape[1] == 1
    label = (output.flatten() > 0).long() if binary else output.argmax(1)
    known = target != MISSING
    if not known.any():
        return "no labels"
    right, common = (label == target)[known], target[known].mode().values
    most = (target[known] == common).float().mean()
    return f"right on {float(right.float().mean()):.1%}, the most frequent class is {float(most):.1%}"


def _spread(output: Tensor, target: Tensor) -> str:
    """Root mean squared error of the model, and of the mean, where shapes agree; `fit` says so where they do not."""
    if output.numel() != target.numel():
        return f"{tuple(output.shape[1:]) or 1} outputs a row"
    error = target.reshape(output.shape) - output
    centred = target - target.nanmean(0)
    rmse, constant = (float(np.sqrt(np.nanmean(values.double().square().numpy()))) for values in (error, centred))
    return f"root mean squared error {rmse:.4g}, that of a constant {constant:.4g}"


def _opened(path: str | None, columns: Columns, size: int) -> Batches | None:
    """Rows like those of the fit, which are looked for before it."""
    return None if path is None else Batches(rows_of(path, like=columns), columns, size)


def _fitted(
    options: argparse.Namespace, model: nn.Module, train: Batches, held_out: Batches | None
) -> PostHocPredictor[Any]:
    layer: Any = None if options.layer is None else options.layer[0] if len(options.layer) == 1 else options.layer
    shared: dict[str, Any] = {"layer": layer, "cache": options.cache or "ram", "rows_per_call": train.size}
    method: SplitPointRegressor | SplitPointClassifier
    if options.task == "regression":
        method = SplitPointRegressor(tuple(options.level or (0.95,)), **shared)
    else:
        method = SplitPointClassifier(output="probs" if options.probs else "logits", **shared)
    given: dict[str, Any] = {"seed": options.seed, "progress": not options.quiet}
    streamed = options.cache is not None
    if held_out is not None:
        given["calibration"] = held_out if streamed else held_out.whole()
        given["calibration_groups"] = _groups(held_out.table, options.groups)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SplitPointWarning)  # the summary has them
        data = train if streamed else train.whole()
        return method.fit(model, data, groups=_groups(train.table, options.groups), **given)


def _groups(table: Table, column: str | None) -> list[str] | None:
    """The group of every row, by name."""
    if column is None:
        return None
    if column not in table.names:
        raise DataError(f"Expected a column {column!r} with --groups, but {table.path} has {some_of(table.names)}.")
    found = [value for part in table.parts([column], 65_536) for value in part.labels(column)]
    if None in found:
        raise DataError(
            f"Expected a group in every row of column {column!r}, but {table.path} has none in row "
            f"{found.index(None) + 1:,}; give rows without one a name of their own."
        )
    return [str(value) for value in found]


def _summary(options: argparse.Namespace, uq: PostHocPredictor[Any], table: Table, columns: Columns) -> list[str]:
    """What was fitted, line by line."""
    method, tap = uq.method, uq.tap
    assert tap is not None
    layer = f"{uq.layer} ({tap.reason})"
    held_out = "none; --calibration F makes "
    held_out += "intervals conformal" if columns.task == "regression" else "probabilities calibrated"
    if options.calibration is not None:
        held_out = _counted(rows_of(options.calibration, like=columns), columns)
    threshold = "none; --threshold-data F gives percentiles and flags"
    if uq.reference is not None:
        threshold = f"95% of {Path(options.threshold_data)} is below"
    lines = {
        "fitted": f"{type(method).__name__} for {options.model}",
        "rows": _counted(table, columns),
        "features": f"{some_of(columns.features)}{'' if len(columns.shape) == 1 else f' {columns.shape}'}",
        "target": some_of(columns.targets),
        "classes": some_of(columns.classes) if columns.classes else "",
        "layer": layer,
        "levels": ", ".join(map(str, options.level or (0.95,))) if columns.task == "regression" else "",
        "calibration": held_out,
        "threshold": threshold,
    }
    return [f"{name + ':':<14}{value}" for name, value in lines.items() if value]


def _counted(table: Table, columns: Columns) -> str:
    """How many rows there are, and how many of them lack a target."""
    rows, missing = 0, 0
    for part in table.parts(columns.targets, 65_536):
        target = columns.wanted(part)
        gone = target == MISSING if columns.task == "classification" else target.reshape(part.rows, -1).isnan().all(1)
        rows, missing = rows + part.rows, missing + int(gone.sum())
    return f"{rows:,} of {table.path}" + (f", {missing:,} without a target" if missing else "")


def _saved(out: Path) -> str:
    return f"saved:        {out}, {out.stat().st_size / 1000:,.0f} kB"


def _warnings(uq: PostHocPredictor[Any]) -> list[str]:
    """What the self-check warns of."""
    failed = [check for check in uq.checks if check.verdict == "warn"]
    lines = [f"  {check.name} ({check.value:.3g}): {check.advice}" for check in failed]
    return [f"checks:       {len(uq.checks) - len(failed)} of {len(uq.checks)} without a warning", *lines]
