"""Settings that rivals share, by the task: what a method cannot use is not a setting of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from splitpoint.errors import SettingsError
from splitpoint.method import Method, R
from splitpoint.tasks import (
    TASKS,
    Classification,
    Levels,
    ModelOutput,
    Regression,
    Task,
    TaskName,
    ascending,
    decided_task,
)

E = TypeVar("E", bound="EitherMethod[object]")  # type: ignore[type-var]
Scaling = Literal["nll", "ece"]


@dataclass(frozen=True, kw_only=True)
class Rival(Method[R]):
    """A method that is compared with."""

    @property
    def _temperature(self) -> Scaling | None:
        """What a temperature is fitted by, where the method has probabilities and is asked to scale them."""
        return None


@dataclass(frozen=True, kw_only=True)
class RegressionMethod(Rival[R]):
    """Settings of regression.

    Attributes:
        confidence_level: share of targets that the interval (or the prediction set) should cover; a tuple gives
            several levels.
    """

    tasks: ClassVar[tuple[TaskName, ...]] = ("regression",)

    confidence_level: float | tuple[float, ...] = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        ascending(self.confidence_level)

    @property
    def levels(self) -> Levels:
        """Confidence levels, ascending."""
        return ascending(self.confidence_level)

    @property
    def _task(self) -> Task:
        return Regression()


@dataclass(frozen=True, kw_only=True)
class ClassificationMethod(Rival[R]):
    """Settings of classification.

    Attributes:
        output: what the model returns, "logits" or "probs"; never guessed.
        ignore_index: label that does not count.
        temperature: scale the probabilities by one temperature fitted on calibration data, by log loss ("nll") or
            calibration error ("ece"); None to leave them.
    """

    tasks: ClassVar[tuple[TaskName, ...]] = ("classification",)

    output: ModelOutput = "logits"
    ignore_index: int = -100
    temperature: Scaling | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Classification(self.output, self.ignore_index)

    @property
    def _task(self) -> Task:
        return Classification(self.output, self.ignore_index)

    @property
    def _temperature(self) -> Scaling | None:
        return self.temperature

    def _check_calibration(self, given: bool) -> None:
        super()._check_calibration(given)
        if self.temperature and not given:
            raise SettingsError(
                f"Expected calibration data for temperature={self.temperature!r}, but got none; "
                "pass calibration= to fit."
            )


@dataclass(frozen=True, kw_only=True)
class EitherMethod(RegressionMethod[R], ClassificationMethod[R]):
    """Settings of methods that can do both tasks.

    Attributes:
        task: "regression", "classification", or "auto": classification where targets are integers.
    """

    tasks: ClassVar[tuple[TaskName, ...]] = TASKS

    task: TaskName | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature and self.task == "regression":
            raise SettingsError(
                f"Expected temperature=None for regression, which has no probabilities, but got {self.temperature!r}; "
                "leave it out."
            )

    @property
    def _task(self) -> Task:
        classes = self.task == "classification"
        return Classification(self.output, self.ignore_index) if classes else Regression()

    @property
    def _undecided(self) -> bool:
        return self.task == "auto"

    def _decided(self: E, output: Tensor, target: Tensor) -> E:
        return self if self.task != "auto" else replace(self, task=decided_task(output, target))

    def _of_task(self: E, task: Task) -> E:
        if self.task not in (task.name, "auto"):
            raise SettingsError(f"Expected rows of {self.task}, but got rows of {task.name}; leave task='auto'.")
        return replace(self, task=task.name)
