"""What pages draw beside the tables, as JSON lines: one schema for suites, which write it, and reports, which read it.

A kind of artefact is a frozen dataclass derived from `Artefact`: its first field says which cell it belongs to, the
others what is drawn, `file` where it is kept. Suites call `put`, reports `read`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from splitpoint.bench.lines import Lines, count_of, mapping_of, number_of, read_lines, text_of
from splitpoint.bench.record import FORMAT, Cell, cell_of, current, finite
from splitpoint.errors import DataError
from splitpoint.files import write_text

PNG_SIGNATURE, PNG_WIDTH = b"\x89PNG\r\n\x1a\n", slice(16, 20)
"""How a PNG file begins, and where it says how wide it is."""

Numbers = tuple[float, ...]
Kind = TypeVar("Kind", bound="Artefact")


@dataclass(frozen=True)
class Artefact:
    """Something that a page draws of a trial of a cell, mostly the first."""

    cell: Cell

    file: ClassVar[str]
    """Name of the file that holds all artefacts of this kind."""

    @property
    def key(self) -> tuple[object, ...]:
        """What no two of a file share."""
        return (self.cell,)

    @staticmethod
    def upgraded(values: dict[str, Any]) -> dict[str, Any]:
        """A line of the first format under the names of today, up to those that all lines share."""
        return values

    @classmethod
    def read(cls: type[Kind], folder: Path) -> list[Kind]:
        """Those of a folder, the last one of every key; lines that are damaged do not count."""
        found = cls.lines(folder).found
        return list({artefact.key: artefact for artefact in found}.values())

    @classmethod
    def lines(cls: type[Kind], folder: Path) -> Lines[Kind]:
        """Those of a folder, and which lines are damaged."""
        return read_lines(folder / cls.file, cls._parsed)

    @classmethod
    def _parsed(cls: type[Kind], line: str) -> Kind | None:
        """The artefact of a line; None where it is of a format that is not known."""
        values = mapping_of(line)
        if "format" not in values:
            values = current(cls.upgraded(values))
        if values.get("format", FORMAT) != FORMAT:
            return None
        artefact: Kind = _decoded(cls, values | {"cell": cell_of(values)._asdict()})
        return artefact

    def put(self, folder: Path) -> None:
        """Keep it in the place of one of the same key; the file is replaced whole or not at all."""
        found = {known.key: known for known in self.read(folder)} | {self.key: self}
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / self.file, "".join(known.line() for known in found.values()))

    def line(self) -> str:
        """The artefact as one line of JSON, the names of its cell beside what is drawn."""
        values = asdict(self)
        cell: Cell = values.pop("cell")
        return json.dumps(finite({"format": FORMAT} | cell._asdict() | values)) + "\n"


@dataclass(frozen=True)
class Curve(Artefact):
    """What one method predicts on a grid, beside the truth and some training rows; all in units of the target.

    Attributes:
        x: the grid.
        mean: prediction on it.
        lower: lower bound of the interval; `upper` likewise.
        upper: upper bound.
        epistemic: score of the method.
        truth: the target without noise.
        true_lower: bound below which the interval's share of the noise on that side ends; `true_upper` likewise.
        true_upper: the same above.
        train_x: inputs of some training rows.
        train_y: their targets.
    """

    x: Numbers
    mean: Numbers
    lower: Numbers
    upper: Numbers
    epistemic: Numbers
    truth: Numbers
    true_lower: Numbers
    true_upper: Numbers
    train_x: Numbers
    train_y: Numbers

    file: ClassVar[str] = "curves.jsonl"

    def __post_init__(self) -> None:
        bounds = (self.mean, self.lower, self.upper, self.epistemic, self.truth, self.true_lower, self.true_upper)
        check_equal("the grid", self.x, *bounds)
        check_equal("the training rows", self.train_x, self.train_y)

    @staticmethod
    def upgraded(values: dict[str, Any]) -> dict[str, Any]:
        """Only the cubic experiment had curves."""
        return {"suite": "cubic", "protocol": "paper", "dataset": "cubic"} | values


@dataclass(frozen=True)
class Attack:
    """Accuracy and mean epistemic score under an attack of growing strength."""

    strength: Numbers
    accuracy: Numbers
    epistemic: Numbers

    def __post_init__(self) -> None:
        check_equal("an attack", self.strength, self.accuracy, self.epistemic)


@dataclass(frozen=True)
class Reliability:
    """Mean confidence, accuracy and number of images in bins of the confidence; NaN where a bin is empty."""

    confidence: Numbers
    accuracy: Numbers
    count: Numbers

    def __post_init__(self) -> None:
        check_equal("a reliability diagram", self.confidence, self.accuracy, self.count)

    @property
    def bins(self) -> list[tuple[float, float, float]]:
        """Confidence, accuracy and share of the images of every bin that holds some."""
        rows = zip(self.confidence, self.accuracy, self.count, strict=True)
        full = [row for row in rows if row[2] > 0 and math.isfinite(sum(row))]
        total = math.fsum(count for *_, count in full)
        return [(confidence, accuracy, count / total) for confidence, accuracy, count in full]

    @property
    def ece(self) -> float:
        """Gap of confidence and accuracy, averaged over the images."""
        return math.fsum(share * abs(accuracy - confidence) for confidence, accuracy, share in self.bins)


@dataclass(frozen=True)
class Histogram:
    """Shares of the test images and of those out of distribution in bins of the score.

    With `logarithm`, edges and threshold are decimal logarithms of the score.
    """

    logarithm: bool
    edges: Numbers
    test: Numbers
    ood: Numbers
    threshold: float

    def __post_init__(self) -> None:
        check_equal("a histogram", self.test, self.ood, self.edges[1:])
        if not self.edges or not all(map(math.isfinite, self.edges)):
            raise DataError("Expected finite edges, one more than there are bins.")


@dataclass(frozen=True)
class Thumbnail:
    """A small image as the base64 text of a PNG file, its class and the predicted one."""

    image: str
    label: int
    predicted: int

    def __post_init__(self) -> None:
        if not base64.b64decode(self.image, validate=True).startswith(PNG_SIGNATURE):
            raise DataError("Expected the base64 text of a PNG file as a thumbnail.")

    @property
    def width(self) -> int:
        """In pixels."""
        return int.from_bytes(base64.b64decode(self.image)[PNG_WIDTH], "big")


@dataclass(frozen=True)
class Thumbnails:
    """A row of images under a title, such as "most doubted, test"; `ood` where no class is right for them."""

    title: str
    ood: bool
    images: tuple[Thumbnail, ...]


@dataclass(frozen=True)
class Drawing(Artefact):
    """What is drawn of one method on images.

    Attributes:
        attack: what growing attacks do to accuracy and score.
        reliability: of the probabilities of the method.
        reliability_before: of those of the base network.
        histogram: of the epistemic score.
        thumbnails: images that the method doubts most and least; empty for methods of which none are kept.
        calibrated: whether the method was given calibration images to learn its probabilities from.
    """

    attack: Attack
    reliability: Reliability
    reliability_before: Reliability
    histogram: Histogram
    thumbnails: tuple[Thumbnails, ...]
    calibrated: bool

    file: ClassVar[str] = "sheets.jsonl"

    @property
    def recalibrated(self) -> bool:
        """Whether the probabilities are others than those of the base network."""
        return self.reliability.bins != self.reliability_before.bins

    @staticmethod
    def upgraded(values: dict[str, Any]) -> dict[str, Any]:
        """Only the image experiments had such lines, without noise; titles said what is out of distribution."""
        histogram = values["histogram"]
        groups = [
            {
                "title": title.replace("outside", "out of distribution"),
                "ood": title.endswith("outside"),
                "images": [{"image": one["picture"]} | one for one in shown],
            }
            for title, shown in values["thumbnails"].items()
        ]
        return (
            {"suite": "images", "noise": "clean", "calibrated": values["method"] in _ONCE_CALIBRATED}
            | values
            | {
                "histogram": {"test": histogram["inside"], "ood": histogram["outside"]} | histogram,
                "thumbnails": groups,
            }
        )


_ONCE_CALIBRATED = (
    *("temperature_scaling", "oc", "ddu", "deep_ensemble"),
    *("splitpoint_calibrated", "splitpoint_default_calibrated", "splitpoint_layers"),
)
"""Ids in lines of the first format of methods that were given calibration images."""


def _decoded(kind: Any, value: Any) -> Any:
    """A value of JSON as the type of a field, whose parts are found by their names; an error where it is none.

    >>> _decoded(tuple[float, ...], [1, 2.5]), _decoded(float, None)
    ((1.0, 2.5), nan)
    """
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise DataError(f"Expected a list, but got {type(value).__name__}.")
        return tuple(_decoded(get_args(kind)[0], part) for part in value)
    if kind is float:
        return number_of(value)
    if kind is str:
        return text_of(value)
    if kind is int:
        return count_of(value)
    if kind is bool:
        if not isinstance(value, bool):
            raise DataError(f"Expected true or false, but got {type(value).__name__}.")
        return value
    return kind(**{name: _decoded(part, value[name]) for name, part in _parts(kind).items() if name in value})


@cache
def _parts(kind: type[Any]) -> Mapping[str, Any]:
    """Names and types of the fields of a class."""
    return {name: part for name, part in get_type_hints(kind).items() if get_origin(part) is not ClassVar}


def check_equal(what: str, *parts: Numbers) -> None:
    """An error unless all parts hold equally many numbers; `what` names them."""
    if len({len(part) for part in parts}) != 1:
        raise DataError(f"Expected equally many numbers in the parts of {what}, but got {[len(p) for p in parts]}.")
