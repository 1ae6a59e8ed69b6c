"""A prediction as columns of a table: one number for every row, named after the field and the output or class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from splitpoint.commands.columns import Columns
from splitpoint.errors import SettingsError
from splitpoint.prediction import ClassificationPrediction, Prediction, RegressionPrediction

Written = dict[str, Any]
"""Columns by name: arrays and lists of as many values as there are rows."""

MOST_CLASSES, TOP = 20, 5
"""Classes with a column of their own each; where there are more, the most probable ones have."""

SCORES = ("aleatoric", "epistemic", "total", "support")
MARKED = ("percentile", "flagged")
"""Fields of predictors with a threshold."""

USUAL = {"regression": ("mean", "lower", "upper", *SCORES), "classification": ("label", "probs", *SCORES)}
OTHERS = {"regression": ("sds", "mar", "mar_up", "mar_down"), "classification": ("base_probs", "sds")}
"""Fields that are written unless others are named, and those that have to be."""


def chosen_fields(task: str, named: Sequence[str] | None, threshold: bool) -> tuple[str, ...]:
    """The fields that are written."""
    if named is None:
        return (*USUAL[task], *(MARKED if threshold else ()))
    known = (*USUAL[task], *MARKED, *OTHERS[task])
    unknown = [name for name in named if name not in known]
    if unknown:
        raise SettingsError(
            f"Expected --fields of a {task} among {', '.join(known)}, but got {', '.join(unknown)}; correct it."
        )
    marked = [name for name in named if name in MARKED]
    if marked and not threshold:
        raise SettingsError(
            f"Expected a predictor with a threshold for {' and '.join(marked)}, but this one has none; fit it with "
            "--threshold-data."
        )
    return tuple(dict.fromkeys(named))


def as_columns(prediction: Prediction, fields: Sequence[str], columns: Columns) -> Written:
    """Columns of the fields."""
    found: Written = {}
    for name in fields:
        if isinstance(prediction, ClassificationPrediction) and name in BY_CLASS:
            found |= BY_CLASS[name](prediction, columns)
        elif isinstance(prediction, RegressionPrediction) and name in ("lower", "upper"):
            bounds = getattr(prediction, f"{name}s")
            for place, level in enumerate(prediction.levels):
                found |= _by_output(f"{name}_{level:g}", bounds[..., place], columns)
        else:
            found |= _by_output(name, getattr(prediction, name), columns)
    return found


def _by_output(name: str, values: Tensor | None, columns: Columns) -> Written:
    """A column for each output; their names end with those of the targets where there are several."""
    if values is None:
        raise SettingsError(
            f"Expected a field that this predictor has, but it has no {name}; leave it out of --fields."
        )
    if values.dim() > 2:
        raise SettingsError(
            f"Expected a model with numbers for each row, but its answers have shape {tuple(values.shape[1:])}; "
            "predict maps and sequences in Python with splitpoint.load."
        )
    flat = values.reshape(len(values), -1)
    outputs = flat.shape[1]
    if outputs == 1:
        return {name: flat[:, 0].numpy()}
    ends = columns.targets if len(columns.targets) == outputs else tuple(map(str, range(outputs)))
    return {f"{name}_{end}": flat[:, place].numpy() for place, end in enumerate(ends)}


def _label(prediction: ClassificationPrediction, columns: Columns) -> Written:
    if prediction.label.dim() > 1:
        _by_output("label", prediction.probs, columns)
    return {"label": columns.named(prediction.label)}


def _probabilities(prefix: str, probs: Tensor, columns: Columns) -> Written:
    """A column for each class, or label and probability of the most probable ones where there are many."""
    classes = probs.shape[1]
    if probs.dim() > 2 or classes <= MOST_CLASSES:
        names = columns.classes or tuple(map(str, range(classes)))
        return {
            f"{prefix}_{name}": _by_output(prefix, probs[:, place], columns)[prefix] for place, name in enumerate(names)
        }
    top = probs.topk(TOP, 1)
    found: Written = {}
    for place in range(TOP):
        found[f"{prefix}_top{place + 1}_label"] = columns.named(top.indices[:, place])
        found[f"{prefix}_top{place + 1}"] = top.values[:, place].numpy()
    return found


BY_CLASS: Mapping[str, Callable[[ClassificationPrediction, Columns], Written]] = {
    "label": _label,
    "probs": lambda prediction, columns: _probabilities("prob", prediction.probs, columns),
    "base_probs": lambda prediction, columns: _probabilities("base_prob", prediction.base_probs, columns),
}
"""Fields of a classification that are more than a number for each row."""


def flagged_in(written: Written) -> int:
    """How many rows are flagged, in any of the outputs."""
    marks = [np.asarray(values) for name, values in written.items() if name.split("_")[0] == "flagged"]
    return int(np.any(marks, axis=0).sum()) if marks else 0
