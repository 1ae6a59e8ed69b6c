"""What pages draw of methods on maps: curves of the attack, sparsification, coverages of images, and the maps."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import ClassVar

from splitpoint.bench.artefacts import PNG_SIGNATURE, Artefact, Numbers, check_equal
from splitpoint.errors import DataError

COLOURS = ((24, 15, 61), (62, 60, 140), (36, 120, 150), (46, 176, 125), (160, 214, 75), (253, 231, 96))
"""Of a map from its lowest number to its highest, evenly spaced; what has no number is grey."""

MISSING = (150, 150, 150)


@dataclass(frozen=True)
class Sweep:
    """Error and mean score of images under an attack of growing strength."""

    strength: Numbers
    rmse: Numbers
    epistemic: Numbers

    def __post_init__(self) -> None:
        check_equal("an attack", self.strength, self.rmse, self.epistemic)


@dataclass(frozen=True)
class Sparsified:
    """Error of the pixels that are left when a share of them is removed, by the total score and by the error itself."""

    removed: Numbers
    error: Numbers
    oracle: Numbers

    def __post_init__(self) -> None:
        check_equal("a sparsification curve", self.removed, self.error, self.oracle)


@dataclass(frozen=True)
class Coverages:
    """Shares of the images in bins of the share of their pixels that are inside the interval."""

    edges: Numbers
    share: Numbers

    def __post_init__(self) -> None:
        check_equal("a histogram", self.share, self.edges[1:])


@dataclass(frozen=True)
class MapRow:
    """One quantity in every column, as the base64 text of PNG files.

    `low` and `high` are the numbers of the first and the last of the `COLOURS`, NaN where colours stand for none.
    """

    title: str
    unit: str
    low: float
    high: float
    maps: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(base64.b64decode(one, validate=True).startswith(PNG_SIGNATURE) for one in self.maps):
            raise DataError("Expected the base64 text of PNG files as maps.")


@dataclass(frozen=True)
class MapDrawing(Artefact):
    """What is drawn of one method on maps.

    Attributes:
        level: of the intervals.
        sweep: what growing attacks do to error and score.
        sparsified: by the total score.
        coverages: of the test images.
        columns: what the columns of `rows` are, such as "clean" or the strength of an attack.
        rows: quantities of one test image and of images out of distribution.
    """

    level: float
    sweep: Sweep
    sparsified: Sparsified
    coverages: Coverages
    columns: tuple[str, ...]
    rows: tuple[MapRow, ...]

    file: ClassVar[str] = "maps.jsonl"

    def __post_init__(self) -> None:
        if any(len(row.maps) != len(self.columns) for row in self.rows):
            raise DataError(f"Expected a map in each of the columns {', '.join(self.columns)}.")
