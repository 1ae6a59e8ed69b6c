"""A piece of work: some methods on the trials that they lack, tried again in smaller pieces where it fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from splitpoint.bench.record import Cell, Record, versions

T = TypeVar("T")
P = TypeVar("P", bound="Piece")

Done = Callable[[Cell, int], set[int]]
"""From a cell and a seed to the trials that are recorded already."""


@dataclass(frozen=True)
class Piece(ABC):
    """Some methods of one family on some trials of one data set.

    Attributes:
        protocol: see `Record`; `noise` and `dataset` likewise.
        noise: law of the noise.
        dataset: its name.
        family: what the methods are trained on together.
        methods: ids of the methods, or of variants of a method.
        trials: numbers of the trials, which are trained as one stack.
        seed: of the whole run.
        epochs: of the networks; None for those of the protocol.
    """

    suite: ClassVar[str]

    protocol: str
    noise: str
    dataset: str
    family: str
    methods: tuple[str, ...]
    trials: tuple[int, ...]
    seed: int = 0
    epochs: int | None = None

    @property
    def label(self) -> str:
        """The piece in words."""
        return f"{self.dataset} {self.family}" + ("" if self.noise == "clean" else f" {self.noise}")

    @property
    @abstractmethod
    def cost(self) -> float:
        """A rough measure of the work, to begin with the largest."""

    @property
    def seeds(self) -> list[int]:
        """One for each trial, of initial weights and row order."""
        return [1000 * self.seed + number for number in self.trials]

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """How networks are trained, for the records."""

    def cell(self, method: str) -> Cell:
        """The cell that a method's trials belong to."""
        return Cell(self.suite, self.protocol, self.noise, self.dataset, method)

    def record(self, method: str, trial: int, **parts: Any) -> Record:
        """The record of one trial."""
        shared: dict[str, Any] = {"stack": self.trials, "seed": self.seed, "versions": versions()}
        return Record(**self.cell(method)._asdict(), trial=trial, **shared, **parts)


def sheltered(piece: P, run: Callable[[P], Iterator[T]], failure: Callable[[Record], T]) -> Iterator[T]:
    """What `run` makes of a piece; a method that fails is tried again alone, then trial by trial.

    Args:
        piece: what to run.
        run: from a piece to what comes of each of its methods, in their order.
        failure: from the record of a trial that fails by itself to what comes of it.
    """
    done = 0
    try:
        for outcome in run(piece):
            yield outcome
            done += 1
    except Exception as error:
        left = piece.methods[done:]
        if len(piece.methods) > 1:
            parts = [replace(piece, methods=own) for own in (left[:1], left[1:]) if own]
        elif len(piece.trials) > 1:
            parts = [replace(piece, trials=(trial,)) for trial in piece.trials]
        else:
            told = {"error": f"{type(error).__name__}: {error}", "settings": piece.settings}
            yield failure(piece.record(piece.methods[0], piece.trials[0], **told))
            return
        for part in parts:
            yield from sheltered(part, run, failure)


def single_trials(pieces: Sequence[P]) -> list[P]:
    """The same work with one trial in every piece, where trials are not trained as a stack."""
    return [replace(piece, trials=(trial,)) for piece in pieces for trial in piece.trials]


def left_of(
    whole: P, families: Mapping[str, Sequence[str]], methods: Sequence[str], trials: int, done: Done
) -> list[P]:
    """The pieces that are left of an experiment: methods of a family that lack the same trials share one.

    Args:
        whole: a piece whose family, methods and trials are filled in.
        families: methods by family.
        methods: those that are wanted.
        trials: how many are wanted.
        done: what there is already.
    """
    found = []
    for family, members in families.items():
        lacking: dict[tuple[int, ...], list[str]] = {}
        for method in members:
            have = done(whole.cell(method), whole.seed) if method in methods else None
            left = () if have is None else tuple(trial for trial in range(trials) if trial not in have)
            if left:
                lacking.setdefault(left, []).append(method)
        found += [replace(whole, family=family, methods=tuple(own), trials=left) for left, own in lacking.items()]
    return found
