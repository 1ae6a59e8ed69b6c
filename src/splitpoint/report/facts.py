"""What ids are called on a page and in which order they stand, and what the tables say of a record.

Methods, data sets, networks and suites have tables of their own, which are read here; ids that no table owns
(protocols, laws of noise, settings of ablations) have their titles below. An id that is not known speaks for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from splitpoint.baselines import METHODS
from splitpoint.bench.lines import DAMAGE
from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.record import Cell, Record
from splitpoint.bench.suites import SUITES
from splitpoint.datasets import SETS

__all__ = [
    "FACTORS",
    "METHODS",
    "NOISES",
    "PROTOCOLS",
    "SUITES",
    "VALUES",
    "Problem",
    "as_number",
    "obstacles",
    "ordered",
    "ordered_problems",
    "title",
]

PROTOCOLS = {"authors": "authors' protocol", "paper": "paper's protocol", "short": "short schedule"}
NOISES = {
    "clean": "no added noise",
    "log_normal": "log-normal noise",
    "trimodal": "trimodal noise",
    "gaussian": "Gaussian noise",
    "diversity": "less diverse rows",
    "label": "label noise",
    "sample": "sample noise",
    "conflict": "one modality of another class",
    "missing": "one modality missing",
}
FACTORS = {"calib_fraction": "calibration fraction", "uq_train_set": "heads trained on"}
"""Settings of ablations whose names do not speak for themselves."""

VALUES = {"train": "training images", "calibration": "calibration images"}
"""Values of settings likewise."""

Table = Mapping[str, Any]
"""Titles by id, or entries that have one."""

BASES: Table = {**NETWORKS, "unet": "U-Net"}
"""Base networks: those of the table, and the one of a suite that has no other."""


def title(name: str, table: Table = METHODS) -> str:
    """The title of an id in a table, that of the methods unless another is given.

    >>> title("sqr_oc"), title("my_method"), title("clean", NOISES)
    ('SQR-OC', 'my method', 'no added noise')
    """
    known = table.get(name, name.replace("_", " "))
    return known if isinstance(known, str) else str(known.title)


def ordered(names: Iterable[str], table: Iterable[str] = METHODS) -> tuple[str, ...]:
    """Ids in the order of a table, each once: known ones first, then numbers by size, then the alphabet.

    >>> ordered(["wine", "splitpoint", "boston", "mc_dropout", "wine"])
    ('mc_dropout', 'splitpoint', 'boston', 'wine')
    >>> ordered(["10", "9", "0.5"])
    ('0.5', '9', '10')
    """
    places = {name: place for place, name in enumerate(table)}

    def key(name: str) -> tuple[int, float, str]:
        number = as_number(name)
        return places.get(name, len(places)), float("inf") if number is None else number, name

    return tuple(sorted(set(names), key=key))


def as_number(text: str) -> float | None:
    """The number that a text is, if it is a finite one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


class Problem(NamedTuple):
    """What methods are tried on: a data set, and a base network where a suite has several."""

    dataset: str
    network: str = ""

    @classmethod
    def of(cls, cell: Cell | Record) -> Problem:
        """That of a cell or a record."""
        return cls(cell.dataset, cell.network)

    @property
    def title(self) -> str:
        """What the page calls it.

        >>> Problem("cifar10", "resnet20_published").title, Problem("boston").title, Problem("my_set", "my_net").title
        ('CIFAR-10, ResNet-20', 'boston', 'my set, my net')
        """
        network = [title(self.network, BASES)] if self.network else []
        return ", ".join([title(self.dataset, SETS), *network])

    def __str__(self) -> str:
        return f"{self.dataset}/{self.network}" if self.network else self.dataset


def ordered_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems in the order of the tables of data sets and of networks, each once."""
    found = set(problems)
    datasets = ordered((problem.dataset for problem in found), SETS)
    networks = ordered((problem.network for problem in found), BASES)
    return tuple(sorted(found, key=lambda one: (datasets.index(one.dataset), networks.index(one.network))))


def obstacles(record: Record) -> tuple[str, ...]:
    """All reasons why a published figure cannot be compared with a record; none where it can."""
    suite = SUITES.get(record.suite)
    if suite is None:
        return ("the suite is not known here",)
    try:
        return suite.obstacles(record)
    except DAMAGE:
        return ("its protocol or settings are none that this suite writes",)
