"""What a suite of experiments declares, and the work that it hands to `run`.

A suite is one file in ``bench/suites/`` with one `Suite`, and one line in the table ``SUITES``. It says what can be
asked for, which cells that makes, where the data of a trial come from, and how methods are fitted and judged there.
`run` owns what all suites share: what is left to do, stacks, retries in smaller pieces, timing, records, the summary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from splitpoint.bench.artefacts import Artefact
from splitpoint.bench.record import Cell, Record
from splitpoint.errors import SettingsError
from splitpoint.predictor import Predictor

ALL = "all"
"""Default of an option that stands for all of its choices."""


@dataclass(frozen=True)
class Option:
    """An option of a suite on the command line.

    Attributes:
        name: without dashes before it.
        help: what it means; choices and default are added.
        choices: names that are allowed, read from a table when they are needed; None for any value.
        default: `ALL` for every choice.
        many: whether it takes several names; they come in the order of the choices.
        kind: type of the value, where it is no name.
    """

    name: str
    help: str
    choices: Callable[[], Sequence[str]] | None = None
    default: Any = ALL
    many: bool = True
    kind: Callable[[str], Any] = str

    def checked(self, given: Any) -> Any:
        """The value to use for what was given, None for nothing; an error where it is not allowed."""
        value = self.default if given is None else given
        if value is None:
            return None
        if self.choices is None:
            if isinstance(value, int) and value < 1:
                raise SettingsError(f"Expected {self.name} >= 1, but got {value}.")
            return value
        allowed = list(self.choices())
        if not self.many:
            if value not in allowed:
                raise SettingsError(f"Expected {self.name} to be one of {', '.join(allowed)}, but got {value!r}.")
            return value
        unknown = [] if value is ALL else [name for name in value if name not in allowed]
        if unknown:
            raise SettingsError(f"Expected {self.name} among {', '.join(allowed)}, but got {', '.join(unknown)}.")
        return [name for name in allowed if value is ALL or name in value]

    @property
    def flag(self) -> str:
        """The name as commands have it, words joined by dashes."""
        return self.name.replace("_", "-")

    def described(self) -> str:
        """The help with choices and default."""
        text = self.help if self.choices is None else f"{self.help}: {', '.join(self.choices())}"
        shown = " ".join(map(str, self.default)) if isinstance(self.default, list | tuple) else self.default
        return text if shown is None else f"{text} (default: {shown})"


@dataclass(frozen=True)
class Work:
    """Some methods on some trials of one cell, which share what they are trained on.

    Attributes:
        suite: name of the suite.
        protocol: see `Record`; `noise`, `dataset` and `network` likewise.
        noise: law of the noise.
        dataset: name of the data set.
        group: what the methods are trained on together, such as base networks that all of them read.
        methods: ids of methods, or names of variants.
        trials: numbers of the trials, which are trained as one stack; empty in what a suite asks for.
        network: name of the base network; empty where the suite has one only.
        seed: of the whole run.
        epochs: of the networks; None for those of the protocol.
        options: what else the suite needs to know, such as a device.
    """

    suite: str
    protocol: str
    noise: str
    dataset: str
    group: str
    methods: tuple[str, ...]
    trials: tuple[int, ...] = ()
    network: str = ""
    seed: int = 0
    epochs: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def cell(self, method: str, variant: str = "") -> Cell:
        """The cell that the trials of a method belong to."""
        return Cell(self.suite, self.protocol, self.noise, self.dataset, method, variant, self.network)

    @property
    def label(self) -> str:
        """The work in words."""
        return f"{self.cell('').place} {self.group}" + ("" if self.noise == "clean" else f" {self.noise}")

    @property
    def seeds(self) -> list[int]:
        """One for each trial, of initial weights and row order."""
        return [1000 * self.seed + number for number in self.trials]


@dataclass(frozen=True)
class Stacked:
    """Work that is trained as one stack, in one process.

    Attributes:
        works: which differ in the law of noise alone.
        cost: rough size in any unit.
    """

    works: tuple[Work, ...]
    cost: float

    @property
    def label(self) -> str:
        """The work in words."""
        return ", ".join(work.label for work in self.works)


@dataclass(frozen=True)
class Request:
    """What a user asks a suite for.

    Attributes:
        suite: name of the suite.
        folder: of the records.
        seed: of the whole run.
        epochs: of the networks; None for those of the protocol.
        options: values of the suite's own options, checked.
    """

    suite: str
    folder: Path
    seed: int = 0
    epochs: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def work(self, **parts: Any) -> Work:
        """Work of this request, of the protocol "paper" and without noise where nothing else is said."""
        usual = {"protocol": "paper", "noise": "clean"}
        return Work(suite=self.suite, seed=self.seed, epochs=self.epochs, **usual | parts)


@dataclass(frozen=True)
class Trial:
    """The data of one trial, in any form that `fit` takes; suites that fit and judge by themselves may hold others.

    Attributes:
        train: what methods learn from that need no calibration rows.
        proper: what the others learn from: the training rows without those for calibration.
        calibration: rows for calibration.
        test: what methods are judged on, inputs and targets.
        scale: units of the target in one unit of the test targets.
        shifted: inputs out of distribution, which the epistemic score should tell from those of the test.
    """

    train: Any
    proper: Any
    calibration: Any
    test: Any
    scale: float = 1.0
    shifted: Any = None


@dataclass(frozen=True)
class Fit:
    """A method or a variant that was fitted on every trial of some work.

    Attributes:
        method: id of the method, or name of the variant.
        predictors: one for each trial.
        settings: for the records.
        seconds: CPU seconds of all predictors together.
        context: what `Suite.judge` needs beside predictor and trial, such as rows that were recorded before.
    """

    method: str
    predictors: Sequence[Predictor[Any]]
    settings: Mapping[str, Any]
    seconds: float
    context: Any = None


@dataclass(frozen=True)
class Result:
    """How a predictor did on a trial.

    Attributes:
        metrics: by name.
        seconds_per_row: CPU seconds of a prediction.
        drawing: what a page draws of it, if anything.
    """

    metrics: dict[str, float]
    seconds_per_row: float
    drawing: Artefact | None = None


class Variant(Protocol):
    """A change of a method, which an ablation tries."""

    @property
    def method(self) -> str:
        """Id of the method in the records."""

    @property
    def name(self) -> str:
        """What is changed, ``key=value;key=value``, as in the published tables."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite of experiments.

    Attributes:
        name: on the command line and in the records.
        title: in reports.
        help: one line for the command line.
        trials: how many there are where no number is asked for.
        options: its own options; those of all suites are added.
        epochs: whose epochs the option of that name sets.
        cells: from a request to the work that it asks for, all trials of it; what cannot be done is an error here.
        settings: how networks of some work are trained, for the records.
        fixed: settings that all results of a cell in one folder must share.
        cost: rough size of some work in any unit, to begin with the largest.
        trial: from some work and a number to the data of that trial.
        fit: from work that is trained as one stack, and the data of all of its trials, to a `Fit` for each method in
            their order.
        judge: from some work, a fit, the place of one of its predictors and the data of that trial to its metrics and
            what pages draw of it.
        stack: work with equal keys is trained as one stack, work with None alone.
        one_by_one: whether trials of some work cannot be trained as a stack.
        variants: by the name under which work lists them, in suites that compare variants of methods.
        obstacles: from a record to all reasons why it leaves the published question open; none where it answers it.
    """

    name: str
    title: str
    help: str
    trials: int
    options: tuple[Option, ...] = ()
    epochs: str = "networks and heads"
    cells: Callable[[Request], Sequence[Work]]
    settings: Callable[[Work], dict[str, Any]]
    fixed: tuple[str, ...] = ("epochs",)
    cost: Callable[[Work], float]
    trial: Callable[[Work, int], Any]
    fit: Callable[[Sequence[Work], Sequence[Any]], Iterator[Fit]]
    judge: Callable[[Work, Fit, int, Any], Result]
    stack: Callable[[Work], Hashable | None] = lambda _: None
    one_by_one: Callable[[Work], bool] = lambda _: False
    variants: Mapping[str, Variant] = field(default_factory=dict)
    obstacles: Callable[[Record], tuple[str, ...]] = lambda _: ()

    def chosen(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values of all options of the suite; an error where one is not allowed, or not known."""
        known = {option.name: option for option in self.options}
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise SettingsError(f"Expected options among {', '.join(known)}, but got {', '.join(unknown)}.")
        return {name: option.checked(given.get(name)) for name, option in known.items()}

    def cell(self, work: Work, method: str) -> Cell:
        """The cell of a method or variant."""
        variant = self.variants.get(method)
        return work.cell(method) if variant is None else work.cell(variant.method, variant.name)
