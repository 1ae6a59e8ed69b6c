"""Records to sections: one for each suite, protocol and noise, and one for each setting that an ablation changed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from splitpoint import metrics
from splitpoint.bench.record import Cell, Record
from splitpoint.metrics import Metric
from splitpoint.report import facts
from splitpoint.report.facts import Problem
from splitpoint.report.published import find, normalised
from splitpoint.report.tables import Column, Entry, Table, Tally, decimals, placed, summarised, with_verdict

Groups = Mapping[tuple[str, Problem], Sequence[Record]]
"""Records by row (a method, or a value of the setting) and problem."""

Entries = Mapping[tuple[str, Problem, str], Entry]
"""Cells by row, problem and name of the metric."""

SAME_TABLE = {"training": "train_fraction"}
"""Settings whose values are rows of the table of another one: joint training is compared with heads on shares of the
training rows, as in the published tables."""


class Place(NamedTuple):
    """Where a section belongs.

    `method` and `factor` are empty unless it shows what a setting of a method does; `held` are settings of such a
    section that all its rows share, as ``key=value;key=value``.
    """

    suite: str
    protocol: str
    noise: str
    method: str = ""
    factor: str = ""
    held: str = ""

    @classmethod
    def of(cls, cell: Cell | Record) -> Place:
        """That of a cell or a record, without what its variant varies."""
        return cls(cell.suite, cell.protocol, cell.noise)

    @property
    def row_kind(self) -> str:
        """What a row is."""
        return facts.title(self.factor, facts.FACTORS) if self.factor else "Method"

    def title(self, *, images: bool) -> str:
        """Suite, protocol, noise (images without any need not say so), and what is varied."""
        parts = [facts.title(self.suite, facts.SUITES), facts.title(self.protocol, facts.PROTOCOLS)]
        if not (images and self.noise == "clean"):
            parts.append(facts.title(self.noise, facts.NOISES))
        if self.factor:
            parts += [facts.title(self.method), self.row_kind]
        for name, value in map(_pair, filter(None, self.held.split(";"))):
            parts.append(f"{facts.title(name, facts.FACTORS)} {facts.title(value, facts.VALUES)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Section:
    """Tables that belong together, one for each metric, or one in all where there is a single problem.

    `groups` are the records that they were made from.
    """

    place: Place
    rows: tuple[str, ...]
    problems: tuple[Problem, ...]
    metrics: tuple[Metric, ...]
    entries: Entries
    tables: tuple[Table, ...]
    trials: tuple[int, ...]
    failures: tuple[str, ...]
    obstacles: tuple[str, ...]
    groups: Groups

    @property
    def title(self) -> str:
        """See `Place.title`."""
        return self.place.title(images=all(problem.network for problem in self.problems))

    @property
    def slug(self) -> str:
        """A name for links."""
        text = "-".join(part for part in self.place if part)
        return "".join(letter if letter.isalnum() else "-" for letter in text.lower())

    @property
    def extent(self) -> str:
        """Trials in a cell, in words."""
        least, most = min(self.trials), max(self.trials)
        return f"{least} {'trial' if most == 1 else 'trials'}" if least == most else f"{least} to {most} trials"

    @property
    def verdicts(self) -> Tally:
        """How all its cells compare with the published ones."""
        return Tally.of(list(self.entries.values()))

    def row_title(self, row: str) -> str:
        """What a row is called: a method by its title, a value of a setting as it is."""
        return row if self.place.factor else facts.title(row)


def sections(records: Sequence[Record]) -> list[Section]:
    """Everything in the records, main tables first, in the order of the page."""
    grouped: dict[Place, dict[tuple[str, Problem], list[Record]]] = {}
    for record in records:
        place, row = _place(record)
        grouped.setdefault(place, {}).setdefault((row, Problem.of(record)), []).append(record)
    tables: tuple[Iterable[str], ...] = (facts.SUITES, facts.PROTOCOLS, facts.NOISES, facts.METHODS, (), ())
    ranks = [facts.ordered((place[i] for place in grouped), table) for i, table in enumerate(tables)]
    order = sorted(grouped, key=lambda p: (bool(p.factor), *(ranks[i].index(part) for i, part in enumerate(p))))
    return [_section(place, grouped[place]) for place in order]


def _place(record: Record) -> tuple[Place, str]:
    """The place of the section of a record, and its row there."""
    place, variant = Place.of(record), normalised(record.variant)
    if not variant:
        return place, record.method
    varied, held = _varied(variant.split(";"))
    factor, value = (", ".join(parts) for parts in zip(*map(_pair, varied), strict=True))
    return place._replace(method=record.method, factor=SAME_TABLE.get(factor, factor), held=";".join(held)), value


def _varied(settings: list[str]) -> tuple[list[str], list[str]]:
    """The settings whose values are rows of a table, and those that each have a table: words beside numbers.

    >>> _varied(["calib_fraction=0.1", "uq_train_set=train"])
    (['calib_fraction=0.1'], ['uq_train_set=train'])
    """
    numbers = [setting for setting in settings if facts.as_number(_pair(setting)[1]) is not None]
    return (numbers, [setting for setting in settings if setting not in numbers]) if numbers else (settings, [])


def _pair(setting: str) -> tuple[str, str]:
    """Name and value of one setting of a variant."""
    name, _, value = setting.partition("=")
    return name, value


def _section(place: Place, groups: Groups) -> Section:
    rows = facts.ordered(row for row, _ in groups)
    problems = facts.ordered_problems(problem for _, problem in groups)
    records = [record for group in groups.values() for record in group]
    shown = metrics.ordered(name for record in records for name in _numbers(record))
    columns: dict[tuple[Problem, str], Column] = {}
    entries: dict[tuple[str, Problem, str], Entry] = {}
    for problem in problems:
        for metric in shown:
            drafts = {row: _draft(groups[row, problem], metric) for row in rows if (row, problem) in groups}
            known = {row: draft for row, draft in drafts.items() if draft is not None}
            title = metric.title if len(problems) == 1 else problem.title
            column = Column(title, problem, metric, decimals(list(known.values())))
            columns[problem, metric.name] = column
            entries |= {(row, problem, metric.name): entry for row, entry in placed(known, column).items()}
    return Section(
        place,
        rows,
        problems,
        shown,
        entries,
        _tables(rows, problems, shown, columns, entries),
        trials=tuple(len(group) for group in groups.values()),
        failures=tuple(f"{_label(r)}: {r.error}" for r in records if r.error is not None),
        obstacles=_obstacles(problems, records, entries),
        groups=groups,
    )


def _obstacles(problems: Sequence[Problem], records: Sequence[Record], entries: Entries) -> tuple[str, ...]:
    """Why problems with published figures have no verdict, each reason once, with the problems unless it is all."""
    shown = {problem for (_, problem, _), entry in entries.items() if entry.published is not None}
    reasons: dict[str, set[Problem]] = {}
    for record in sorted(records, key=lambda record: problems.index(Problem.of(record))):
        if Problem.of(record) in shown:
            for reason in facts.obstacles(record):
                reasons.setdefault(reason, set()).add(Problem.of(record))
    return tuple(
        reason if found == shown else f"{reason} ({'; '.join(one.title for one in problems if one in found)})"
        for reason, found in reasons.items()
    )


def _label(record: Record) -> str:
    variant = f", {record.variant}" if record.variant else ""
    return f"{facts.title(record.method)}{variant} on {Problem.of(record).title}, trial {record.trial}"


def _numbers(record: Record) -> dict[str, float]:
    return record.metrics | record.timing


def _draft(group: Sequence[Record], metric: Metric) -> Entry | None:
    """The entry of a group before its place is known; None where the metric does not belong to the method."""
    known = [record for record in group if record.error is None and metric.name in _numbers(record)]
    if not known and any(record.error is None for record in group):
        return None
    trials: dict[int, list[Record]] = {}
    for record in group:
        trials.setdefault(record.trial, []).append(record)
    ours = summarised([_of_trial(own, metric) for own in trials.values()])
    figure = find(group[0].cell, metric.name)
    return with_verdict(ours, figure, metric, comparable=figure is None or not facts.obstacles(group[0]))


def _of_trial(records: Sequence[Record], metric: Metric) -> float | None:
    """The number of one trial, the mean over seeds where there are several; None where one failed."""
    if any(record.error is not None for record in records):
        return None
    return statistics.fmean(_numbers(record).get(metric.name, math.nan) for record in records)


def _tables(
    rows: tuple[str, ...],
    problems: tuple[Problem, ...],
    shown: tuple[Metric, ...],
    columns: Mapping[tuple[Problem, str], Column],
    entries: Entries,
) -> tuple[Table, ...]:
    """A table for each metric with a column for each problem; of one problem, a column for each metric."""
    if len(problems) == 1:
        grids = [("All measures", [(problems[0], metric.name) for metric in shown])]
    else:
        grids = [(metric.title, [(problem, metric.name) for problem in problems]) for metric in shown]
    return tuple(
        Table(
            title,
            rows,
            tuple(columns[key] for key in keys),
            {
                (row, index): entries[row, problem, name]
                for index, (problem, name) in enumerate(keys)
                for row in rows
                if (row, problem, name) in entries
            },
        )
        for title, keys in grids
    )
