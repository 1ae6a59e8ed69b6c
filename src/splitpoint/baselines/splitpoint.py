"""Split-point uncertainty as an entry of the table of methods: one id for both tasks, decided by the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor, nn

from splitpoint.batches import Data, first_batch
from splitpoint.calls import MOST_PLACES, spread
from splitpoint.classification import SplitPointClassifier
from splitpoint.errors import SettingsError
from splitpoint.hooks import INPUT
from splitpoint.method import Given, GivenRows, PostHoc, check_recordings
from splitpoint.networks.surgery import weight_layers
from splitpoint.posthoc import PostHocPredictor
from splitpoint.recording import Recording
from splitpoint.regression import SplitPointRegressor
from splitpoint.tasks import TASKS, Classification, Regression, Task, TaskName, decided_task

S = TypeVar("S", bound="SplitPoint")
Heads = SplitPointRegressor | SplitPointClassifier
HEADS: dict[TaskName, Any] = {"regression": SplitPointRegressor, "classification": SplitPointClassifier}


@dataclass(frozen=True, init=False)
class SplitPoint(PostHoc[PostHocPredictor[Any]]):
    """`SplitPointRegressor` or `SplitPointClassifier`, as the data ask, in one of the recipes of the table.

    It takes every setting that either of them has; one that the task at hand does not have, or has with other values,
    is refused by `fit`.

    Attributes:
        task: "regression", "classification", or "auto": classification where targets are integers.
        paper: the paper's recipe in place of ours.
        held_out: whether calibration data are used; the plain recipes leave them aside.
        layers: whether features of several layers are read, spread over the network, where no `layer` is given.
        settings: of the heads, by name.
    """

    tasks: ClassVar[tuple[TaskName, ...]] = TASKS

    task: TaskName | Literal["auto"] = "auto"
    paper: bool = False
    held_out: bool = False
    layers: bool = False
    settings: tuple[tuple[str, Any], ...] = ()

    def __new__(cls: type[S], **settings: Any) -> S:
        """Refuse settings that neither task has."""
        own = {"task", "paper", "held_out", "layers"}
        names = [field.name for heads in HEADS.values() for field in dataclasses.fields(heads)]
        unknown = [name for name in settings if name not in {*own, *names}]
        if unknown:
            known = ", ".join(dict.fromkeys(["task", *names]))
            raise SettingsError(f"Expected settings among {known}, but got {', '.join(unknown)}.")
        return object.__new__(cls)

    def __init__(
        self,
        *,
        task: TaskName | Literal["auto"] = "auto",
        paper: bool = False,
        held_out: bool = False,
        layers: bool = False,
        **settings: Any,
    ) -> None:
        if task not in (*TASKS, "auto"):
            raise SettingsError(f"Expected task to be one of {TASKS}, but got {task!r}.")
        if settings.get("interval") == "conformal" and not held_out:
            raise SettingsError(
                "Expected another interval= of a method that leaves calibration data unused, but got 'conformal'; "
                "use splitpoint_conformal."
            )
        shared = {field.name: field.default for field in dataclasses.fields(PostHoc)}
        values = {name: settings.get(name, default) for name, default in shared.items()}
        values |= {"task": task, "paper": paper, "held_out": held_out, "layers": layers}
        for name, value in (values | {"settings": tuple(settings.items())}).items():
            object.__setattr__(self, name, value)
        errors = [self._refusal(name) for name in (TASKS if task == "auto" else (task,)) if self._has(name, settings)]
        if errors and None not in errors:
            raise next(error for error in errors if error is not None)

    def _has(self, task: TaskName, settings: Iterable[str]) -> bool:
        return set(settings) <= {field.name for field in dataclasses.fields(HEADS[task])}

    def _refusal(self, task: TaskName) -> SettingsError | None:
        """Why the method of a task does not take these settings; None where it does."""
        try:
            self._heads(task)
        except SettingsError as error:
            return error
        return None

    def _heads(self, task: TaskName) -> Heads:
        """The method of a task with these settings."""
        settings = {name: value for name, value in self.settings if name != "training"}
        if self.held_out and task == "regression":
            settings = {"interval": "consistent" if self.paper else "conformal"} | settings
        heads: Heads = (HEADS[task].paper if self.paper else HEADS[task])(**settings)
        return heads

    @property
    def _task(self) -> Task:
        given = dict(self.settings)
        if self.task == "classification":
            return Classification(given.get("output", "logits"), given.get("ignore_index", -100))
        return Regression()

    @property
    def _undecided(self) -> bool:
        return self.task == "auto"

    def _decided(self, output: Tensor, target: Tensor) -> Any:
        return self._heads(decided_task(output, target) if self.task == "auto" else self.task)

    def _of_task(self, task: Task) -> Any:
        if self.task not in (task.name, "auto"):
            raise SettingsError(f"Expected rows of {self.task}, but got rows of {task.name}; leave task='auto'.")
        return self._heads(task.name)

    def _decided_for(self, model: nn.Module, data: Data) -> Any:
        heads: Any = self._heads(self.task) if self.task != "auto" else super()._decided_for(model, data)
        if not self.layers or heads.layer is not None:
            return heads
        return dataclasses.replace(heads, layer=several_layers(model, data, self.rows_per_call))

    def _fit_many(self, given: Given) -> list[PostHocPredictor[Any]]:
        models = self._models(given)
        heads = self._decided_for(models[0], given.data[0])
        held_out = given.calibration if self._wants(heads, given.calibration is not None) else None
        rest = {"groups": given.groups, "calibration": held_out, "seeds": given.seeds, "progress": given.progress}
        if held_out is not None:
            rest["calibration_groups"] = given.calibration_groups
        found = heads.fit_many(models, given.data, **rest)
        for predictor, start in zip(found, given.starts, strict=True):
            predictor.owns_base = not isinstance(start, nn.Module)
        return list(found)

    def fit_rows(
        self, recording: Recording, *, calibration: Recording | None = None, seed: int = 0, progress: bool = True
    ) -> PostHocPredictor[Any]:
        """See `Method`."""
        check_recordings(recording, calibration)
        heads = self._of_task(recording.task)
        held_out = calibration if self._wants(heads, calibration is not None) else None
        found: PostHocPredictor[Any] = heads.fit_rows(recording, calibration=held_out, seed=seed, progress=progress)
        return found

    def _wants(self, heads: Heads, given: bool) -> bool:
        """Whether calibration data are used; an error where they are needed and missing."""
        needed = isinstance(heads, SplitPointClassifier) or heads.interval == "conformal"
        if self.held_out and needed and not given:
            raise SettingsError(
                "Expected calibration data for calibrated intervals and probabilities, but got none; "
                "pass calibration= to fit."
            )
        return self.held_out and needed

    def _fit_recorded(self, given: GivenRows) -> list[PostHocPredictor[Any]]:
        return list(self._of_task(given.rows[0].task)._fit_recorded(given))


def several_layers(model: nn.Module, data: Data, rows: int) -> list[str]:
    """Inputs of at most four linear and convolution layers, evenly spread in the order in which they run, the last too.

    Where there are more than two layers, the input of the first, which is the model's own, is left out.
    """
    names = weight_layers(model, first_batch(data, rows).to(model))
    names = names[1:] if len(names) > 2 else names
    if not names:
        raise SettingsError("Expected a model with linear or convolution layers to read, but it has none.")
    return [name + INPUT for name in spread(names, MOST_PLACES)]
