"""What was run, in words: the facts at the head of a report, and one line for each section."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from splitpoint.bench.record import Record
from splitpoint.report import names
from splitpoint.report.sections import Section
from splitpoint.report.tables import Tally

SUMMARY_HEADER = ("section", "cells", "reproduced", "better", "worse", "failed", "share")


def overview(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Names and values: suites, protocols, noises, data sets, methods, trials, failures, seeds, settings, versions."""
    failed = sum(record.error is not None for record in records)
    versions = sorted({f"{name} {version}" for record in records for name, version in record.versions.items()})
    return [
        ("Suites", _listed((r.suite for r in records), names.SUITES)),
        ("Protocols", _listed((r.protocol for r in records), names.PROTOCOLS)),
        ("Noise", _listed((r.noise for r in records), names.NOISES)),
        ("Data sets", "; ".join(map(names.dataset_title, names.ordered_datasets(r.dataset for r in records)))),
        ("Methods", _listed((r.method for r in records), names.METHODS)),
        ("Trials", f"{len(records):,} ({failed:,} failed)" if failed else f"{len(records):,}, none failed"),
        ("Seed", ", ".join(map(str, sorted({record.seed for record in records})))),
        ("Settings", _settings(records) or "not recorded"),
        ("Software", ", ".join(versions) or "not recorded"),
    ]


def _settings(records: Sequence[Record]) -> str:
    """Every setting with the values it took, so that a shortened run is seen as one.

    Groups of settings, such as those of heads, are in the records only.
    """
    found: dict[str, set[str]] = {}
    for record in records:
        plain = {name: value for name, value in record.settings.items() if not isinstance(value, dict)}
        for name, value in plain.items():
            found.setdefault(name, set()).add(str(value))
    return "; ".join(f"{names.title(name)} {', '.join(names.ordered(found[name]))}" for name in sorted(found))


def _listed(ids: Iterable[str], titles: dict[str, str]) -> str:
    return ", ".join(names.title(name, titles) for name in names.ordered(ids, titles))


def summary_rows(sections: Sequence[Section]) -> list[tuple[str, ...]]:
    """A header, and for each section how many of its cells have a published figure, and how they compare."""
    return [SUMMARY_HEADER, *(_summary(section) for section in sections)]


def _summary(section: Section) -> tuple[str, ...]:
    tally = section.verdicts
    if not tally.compared:
        return (section.title, *("-",) * (len(SUMMARY_HEADER) - 1))
    counts = (tally.compared, tally.reproduced, tally.better, tally.worse, tally.failed)
    return (section.title, *map(str, counts), f"{100 * tally.reproduced / tally.compared:.0f}%")


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def told_datasets(section: Section) -> str:
    """How many data sets a section has, and which one where it is one."""
    said = count(len(section.datasets), "data set")
    return f"{said} ({names.dataset_title(section.datasets[0])})" if len(section.datasets) == 1 else said


def told_verdicts(section: Section) -> str:
    """How the section compares with the published figures, and why some of it does not, in sentences."""
    reasons = "; ".join(section.obstacles)
    if reasons and not section.verdicts.compared:
        return f"Published figures are shown without a verdict: {reasons}."
    return f"Published figures: {section.verdicts}.{f' No verdict in some cells: {reasons}.' if reasons else ''}"


def told(records: Sequence[Record], sections: Sequence[Section]) -> str:
    """A few lines for the command line."""
    failed = sum(record.error is not None for record in records)
    lines = [f"{len(records):,} trials, {failed:,} failed."]
    lines += [f"  {section.title}: {section.extent}; {section.verdicts}" for section in sections]
    total = sum((section.verdicts for section in sections), Tally())
    return "\n".join([*lines, f"All published figures: {total}."])
