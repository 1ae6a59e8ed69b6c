"""What pages draw of test rows with one modality spoilt: which of them are found, and which modality is blamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from splitpoint.bench.artefacts import Artefact, Numbers, check_equal
from splitpoint.errors import DataError

OWN, ENTROPY = "own", "entropy"
"""Scores by which spoilt rows are found: the method's own, and the entropy of its probabilities."""


@dataclass(frozen=True)
class SpoiltScore:
    """AUROC of a score by the spoilt modality; `name` is `OWN` or `ENTROPY`."""

    name: str
    auroc: Numbers


@dataclass(frozen=True)
class SpoiltDrawing(Artefact):
    """One trial of a method on rows with one modality spoilt.

    Attributes:
        trial: number of the trial.
        seed: of the whole run.
        modalities: that are spoilt one at a time.
        scores: of the method; empty where modalities are missing, which nobody needs to find.
        accuracy: by the spoilt modality; empty for methods that predict nothing.
        blamed: shares of the rows in which each modality is blamed, by the spoilt one; empty for methods that blame
            none.
    """

    trial: int
    seed: int
    modalities: tuple[str, ...]
    scores: tuple[SpoiltScore, ...]
    accuracy: Numbers
    blamed: tuple[Numbers, ...]

    file: ClassVar[str] = "spoilt.jsonl"

    def __post_init__(self) -> None:
        for score in self.scores:
            check_equal("a score", score.auroc, tuple(0.0 for _ in self.modalities))
        if self.blamed and {len(self.blamed), *map(len, self.blamed)} != {len(self.modalities)}:
            raise DataError(f"Expected shares of each of {len(self.modalities)} modalities, but got {self.blamed}.")

    @property
    def key(self) -> tuple[object, ...]:
        """All trials are kept."""
        return (self.cell, self.seed, self.trial)
