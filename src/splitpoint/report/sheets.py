"""What a page draws of the image experiments: ``sheets.jsonl``, a line for each protocol, data set and method."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitpoint.errors import DataError
from splitpoint.report import names
from splitpoint.report.lines import number, numbers, read_whole, word

SHEETS = "sheets.jsonl"
CALIBRATING = ("temperature_scaling", "oc", "ddu", "deep_ensemble", "splitpoint_layers")
"""Methods of the image experiments that calibrate, beside those whose ids end in ``calibrated``."""

SIGNATURE = b"\x89PNG\r\n\x1a\n"
WIDTH_BYTES = slice(16, 20)
"""Where a PNG file says how wide its picture is."""


@dataclass(frozen=True)
class Attack:
    """Accuracy and mean epistemic score under an attack of growing strength."""

    strength: tuple[float, ...]
    accuracy: tuple[float, ...]
    epistemic: tuple[float, ...]


@dataclass(frozen=True)
class Reliability:
    """Mean confidence, accuracy and number of pictures in bins of the confidence; NaN where a bin is empty."""

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[float, ...]

    @property
    def bins(self) -> list[tuple[float, float, float]]:
        """Confidence, accuracy and share of the pictures of every bin that holds some."""
        rows = zip(self.confidence, self.accuracy, self.count, strict=True)
        full = [row for row in rows if row[2] > 0 and math.isfinite(sum(row))]
        total = math.fsum(count for *_, count in full)
        return [(confidence, accuracy, count / total) for confidence, accuracy, count in full]

    @property
    def ece(self) -> float:
        """Gap of confidence and accuracy, averaged over the pictures."""
        return math.fsum(share * abs(accuracy - confidence) for confidence, accuracy, share in self.bins)


@dataclass(frozen=True)
class Histogram:
    """Shares of pictures inside and outside of the distribution in bins of the score.

    With `logarithm`, edges and threshold are decimal logarithms of the score.
    """

    logarithm: bool
    edges: tuple[float, ...]
    inside: tuple[float, ...]
    outside: tuple[float, ...]
    threshold: float


@dataclass(frozen=True)
class Thumbnail:
    """A picture as the base64 text of a PNG file, how many pixels wide it is, its class and the predicted one."""

    picture: str
    width: int
    label: int
    predicted: int


@dataclass(frozen=True)
class Sheet:
    """One method on one data set; thumbnails by group, such as "most doubted, test"."""

    protocol: str
    dataset: str
    method: str
    attack: Attack
    before: Reliability
    after: Reliability
    histogram: Histogram
    thumbnails: Mapping[str, tuple[Thumbnail, ...]]

    @property
    def recalibrated(self) -> bool:
        """Whether the probabilities are others than those of the base network."""
        return self.before.bins != self.after.bins

    @property
    def calibrates(self) -> bool:
        """Whether the method learns from calibration pictures what its probabilities should be, or changes them."""
        return self.method in CALIBRATING or self.method.endswith("calibrated") or self.recalibrated


def read(folder: Path) -> list[Sheet]:
    """The sheets of a folder in the order of the page, none without a file; torn lines do not count."""
    found = {(sheet.protocol, sheet.dataset, sheet.method): sheet for sheet in read_whole(folder / SHEETS, _parsed)}
    protocols = names.ordered((protocol for protocol, _, _ in found), names.PROTOCOLS)
    datasets = names.ordered_datasets(dataset for _, dataset, _ in found)
    methods = names.ordered(method for _, _, method in found)
    return [found[key] for key in itertools.product(protocols, datasets, methods) if key in found]


def _parsed(values: Any) -> Sheet:
    return Sheet(
        word(values["protocol"]),
        word(values["dataset"]),
        word(values["method"]),
        Attack(*_columns(values["attack"], "strength", "accuracy", "epistemic")),
        before=Reliability(*_columns(values["reliability_before"], "confidence", "accuracy", "count")),
        after=Reliability(*_columns(values["reliability"], "confidence", "accuracy", "count")),
        histogram=_histogram(values["histogram"]),
        thumbnails={group: tuple(map(_thumbnail, shown)) for group, shown in values["thumbnails"].items()},
    )


def _columns(values: Any, *keys: str) -> list[tuple[float, ...]]:
    found = [numbers(values[key]) for key in keys]
    if len({len(column) for column in found}) != 1:
        raise DataError(f"Expected equally many numbers in {keys}.")
    return found


def _histogram(values: Any) -> Histogram:
    inside, outside = _columns(values, "inside", "outside")
    edges = numbers(values["edges"])
    if len(edges) != len(inside) + 1 or not all(map(math.isfinite, edges)):
        raise DataError("Expected one edge more than there are bins.")
    return Histogram(bool(values["logarithm"]), edges, inside, outside, number(values["threshold"]))


def _thumbnail(values: Any) -> Thumbnail:
    picture = word(values["picture"])
    content = base64.b64decode(picture, validate=True)
    if not content.startswith(SIGNATURE):
        raise DataError("Expected a PNG file.")
    width = int.from_bytes(content[WIDTH_BYTES], "big")
    return Thumbnail(picture, width, int(values["label"]), int(values["predicted"]))
