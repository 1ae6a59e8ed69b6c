"""Records to sections: one for each suite, protocol and noise, and one for each setting that an ablation changed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from splitpoint.bench.record import Record
from splitpoint.report import measures, names
from splitpoint.report.measures import Measure
from splitpoint.report.published import find, normalised, obstacles
from splitpoint.report.tables import Column, Entry, Table, Tally, decimals, judged, placed, summarised


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


Groups = Mapping[tuple[str, str], Sequence[Record]]
"""Records by row (a method, or a value of the setting) and data set."""


@dataclass(frozen=True)
class Section:
    """Tables that belong together, one for each measure, or one in all where there is a single data set.

    `groups` are the records that they were made from.
    """

    place: Place
    rows: tuple[str, ...]
    datasets: tuple[str, ...]
    measures: tuple[Measure, ...]
    entries: Mapping[tuple[str, str, str], Entry]
    tables: tuple[Table, ...]
    trials: tuple[int, ...]
    failures: tuple[str, ...]
    obstacles: tuple[str, ...]
    groups: Groups

    @property
    def title(self) -> str:
        """Suite, protocol, noise where it can be told from others, and what is varied."""
        place = self.place
        parts = [names.title(place.suite, names.SUITES), names.title(place.protocol, names.PROTOCOLS)]
        if not (self.of_pictures and place.noise == "clean"):
            parts.append(names.title(place.noise, names.NOISES))
        if place.factor:
            parts += [names.title(place.method), names.title(place.factor, names.FACTORS)]
        for name, _, value in (held.partition("=") for held in place.held.split(";") if held):
            parts.append(f"{names.title(name, names.FACTORS)} {names.title(value, names.VALUES)}")
        return ", ".join(parts)

    @property
    def of_pictures(self) -> bool:
        """Whether its data sets are pictures, each with a network."""
        return all("/" in dataset for dataset in self.datasets)

    @property
    def slug(self) -> str:
        """A name for links."""
        text = "-".join(part for part in self.place if part)
        return "".join(letter if letter.isalnum() else "-" for letter in text.lower())

    @property
    def row_kind(self) -> str:
        """What a row is."""
        return names.title(self.place.factor, names.FACTORS) if self.place.factor else "Method"

    @property
    def extent(self) -> str:
        """Trials in a cell, in words."""
        least, most = min(self.trials), max(self.trials)
        return f"{least} {'trial' if most == 1 else 'trials'}" if least == most else f"{least} to {most} trials"

    @property
    def verdicts(self) -> Tally:
        """How all its cells compare with the published ones."""
        return Tally.of(list(self.entries.values()))


def sections(records: Sequence[Record]) -> list[Section]:
    """Everything in the records, main tables first, in the order of the page."""
    grouped: dict[Place, dict[tuple[str, str], list[Record]]] = {}
    for record in records:
        place, row = _place(record)
        grouped.setdefault(place, {}).setdefault((row, record.dataset), []).append(record)
    kinds: list[dict[str, str]] = [names.SUITES, names.PROTOCOLS, names.NOISES, names.METHODS, {}, {}]
    ranks = [names.ordered((place[i] for place in grouped), titles) for i, titles in enumerate(kinds)]
    order = sorted(grouped, key=lambda p: (bool(p.factor), *(ranks[i].index(part) for i, part in enumerate(p))))
    return [_section(place, grouped[place]) for place in order]


SAME_TABLE = {"training": "train_fraction"}
"""Settings whose values are rows of the table of another one: joint training is compared with heads on shares of the
training rows, as in the published tables."""


def _place(record: Record) -> tuple[Place, str]:
    variant = normalised(record.variant)
    if not variant:
        return Place(record.suite, record.protocol, record.noise), record.method
    varied, held = _varied(variant.split(";"))
    pairs = [part.partition("=") for part in varied]
    factor, value = (", ".join(pair[index] for pair in pairs) for index in (0, 2))
    factor = SAME_TABLE.get(factor, factor)
    return Place(record.suite, record.protocol, record.noise, record.method, factor, ";".join(held)), value


def _varied(settings: list[str]) -> tuple[list[str], list[str]]:
    """The settings whose values are rows of a table, and those that each have a table: words beside numbers.

    >>> _varied(["calib_fraction=0.1", "uq_train_set=train"])
    (['calib_fraction=0.1'], ['uq_train_set=train'])
    """
    numbers = [part for part in settings if names.as_number(part.partition("=")[2]) is not None]
    return (numbers, [part for part in settings if part not in numbers]) if numbers else (settings, [])


def _section(place: Place, groups: Groups) -> Section:
    rows, datasets = names.ordered(row for row, _ in groups), names.ordered_datasets(name for _, name in groups)
    seen = [record for group in groups.values() for record in group]
    shown = measures.ordered(name for record in seen for name in _numbers(record))
    drafts = {
        (row, dataset, measure.name): draft
        for (row, dataset), group in groups.items()
        for measure in shown
        if (draft := _draft(group, measure)) is not None
    }
    columns = {
        (dataset, measure.name): _column(rows, dataset, measure, drafts, single=len(datasets) == 1)
        for dataset in datasets
        for measure in shown
    }
    entries: dict[tuple[str, str, str], Entry] = {}
    for (dataset, name), column in columns.items():
        drafted = {row: drafts[row, dataset, name] for row in rows if (row, dataset, name) in drafts}
        entries |= {(row, dataset, name): entry for row, entry in placed(drafted, column).items()}
    return Section(
        place,
        rows,
        datasets,
        shown,
        entries,
        _tables(rows, datasets, shown, columns, entries),
        trials=tuple(len(group) for group in groups.values()),
        failures=tuple(f"{_label(r)}: {r.error}" for r in seen if r.error is not None),
        obstacles=_obstacles(datasets, seen, entries),
        groups=groups,
    )


def _obstacles(
    datasets: Sequence[str], records: Sequence[Record], entries: Mapping[tuple[str, str, str], Entry]
) -> tuple[str, ...]:
    """Why data sets with published figures have no verdict, each reason once, with the data sets unless it is all."""
    shown = {dataset for (_, dataset, _), entry in entries.items() if entry.published is not None}
    reasons: dict[str, set[str]] = {}
    for record in sorted((r for r in records if r.dataset in shown), key=lambda r: datasets.index(r.dataset)):
        for reason in _obstacles_of(record):
            reasons.setdefault(reason, set()).add(record.dataset)
    return tuple(
        reason if found == shown else f"{reason} ({'; '.join(names.dataset_title(d) for d in datasets if d in found)})"
        for reason, found in reasons.items()
    )


def _label(record: Record) -> str:
    variant = f", {record.variant}" if record.variant else ""
    return f"{names.title(record.method)}{variant} on {names.dataset_title(record.dataset)}, trial {record.trial}"


def _numbers(record: Record) -> dict[str, float]:
    return record.metrics | record.timing


def _draft(group: Sequence[Record], measure: Measure) -> Entry | None:
    """The entry of a group before its place is known; None where the measure does not belong to the method."""
    known = [record for record in group if record.error is None and measure.name in _numbers(record)]
    if not known and any(record.error is None for record in group):
        return None
    trials: dict[int, list[Record]] = {}
    for record in group:
        trials.setdefault(record.trial, []).append(record)
    ours = summarised([_of_trial(own, measure) for own in trials.values()])
    record = group[0]
    figure = find(record.dataset, record.noise, record.method, record.variant, measure.name)
    return judged(ours, figure, measure, comparable=not _obstacles_of(record))


def _of_trial(records: Sequence[Record], measure: Measure) -> float | None:
    """The number of one trial, the mean over seeds where there are several; None where one failed."""
    if any(record.error is not None for record in records):
        return None
    return statistics.fmean(_numbers(record).get(measure.name, math.nan) for record in records)


def _obstacles_of(record: Record) -> tuple[str, ...]:
    return obstacles(record.protocol, record.noise, record.dataset, record.settings)


def _column(
    rows: Sequence[str],
    dataset: str,
    measure: Measure,
    drafts: Mapping[tuple[str, str, str], Entry],
    *,
    single: bool,
) -> Column:
    present = [drafts[row, dataset, measure.name] for row in rows if (row, dataset, measure.name) in drafts]
    return Column(measure.title if single else names.dataset_title(dataset), dataset, measure, decimals(present))


def _tables(
    rows: tuple[str, ...],
    datasets: tuple[str, ...],
    shown: tuple[Measure, ...],
    columns: Mapping[tuple[str, str], Column],
    entries: Mapping[tuple[str, str, str], Entry],
) -> tuple[Table, ...]:
    """A table for each measure with a column for each data set; of one data set, a column for each measure."""
    if len(datasets) == 1:
        grids = [("All measures", [(datasets[0], measure.name) for measure in shown])]
    else:
        grids = [(measure.title, [(dataset, measure.name) for dataset in datasets]) for measure in shown]
    return tuple(
        Table(
            title,
            rows,
            tuple(columns[key] for key in keys),
            {
                (row, index): entries[row, dataset, name]
                for index, (dataset, name) in enumerate(keys)
                for row in rows
                if (row, dataset, name) in entries
            },
        )
        for title, keys in grids
    )
