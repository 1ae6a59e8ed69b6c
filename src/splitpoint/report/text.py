"""The report in words: the facts at its head, a line for each section, and all tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from splitpoint.bench.record import Record
from splitpoint.report import controls, detection, facts
from splitpoint.report.facts import Problem
from splitpoint.report.published import SOURCE
from splitpoint.report.ranks import compare_rows
from splitpoint.report.sections import Section
from splitpoint.report.tables import NO_VERDICT, SIGNS, Column, Entry, Table, Tally

AGREEMENT_HEADER = ("section", "cells", "reproduced", "better", "worse", "failed", "share")

LEGEND = (
    "Mean over trials ± standard error; **best** and _second_ as printed. In brackets the figure published by "
    f"{SOURCE}, with the verdict: {SIGNS['reproduced']} reproduced (within two standard errors of the difference plus "
    f"half a unit of the last published digit), {SIGNS['better']} better, {SIGNS['worse']} worse, {SIGNS['failed']} "
    f"failed trials, {NO_VERDICT} no verdict (not comparable, or one trial). A cell with failed trials has no mean."
)


def overview(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Names and values: suites, protocols, noises, data sets, methods, trials, failures, seeds, settings, versions."""
    failed = sum(record.error is not None for record in records)
    versions = sorted({f"{name} {version}" for record in records for name, version in record.versions.items()})
    problems = facts.ordered_problems(map(Problem.of, records))
    return [
        ("Suites", _listed((r.suite for r in records), facts.SUITES)),
        ("Protocols", _listed((r.protocol for r in records), facts.PROTOCOLS)),
        ("Noise", _listed((r.noise for r in records), facts.NOISES)),
        ("Data sets", "; ".join(problem.title for problem in problems)),
        ("Methods", _listed((r.method for r in records), facts.METHODS)),
        ("Trials", f"{len(records):,} ({failed:,} failed)" if failed else f"{len(records):,}, none failed"),
        ("Seed", ", ".join(map(str, sorted({record.seed for record in records})))),
        ("Settings", _settings(records) or "not recorded"),
        ("Software", ", ".join(versions) or "not recorded"),
    ]


def _listed(ids: Iterable[str], table: facts.Table) -> str:
    return ", ".join(facts.title(name, table) for name in facts.ordered(ids, table))


def _settings(records: Sequence[Record]) -> str:
    """Every setting with the values it took, so that a shortened run is seen as one.

    Groups of settings, such as those of heads, are in the records only.
    """
    found: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.settings.items():
            if not isinstance(value, dict):
                found.setdefault(name, set()).add(str(value))
    return "; ".join(f"{facts.title(name, {})} {', '.join(facts.ordered(found[name]))}" for name in sorted(found))


def agreement(sections: Sequence[Section]) -> list[tuple[str, ...]]:
    """A header, and for each section how many of its cells have a published figure, and how they compare."""
    return [AGREEMENT_HEADER, *(_agreement(section) for section in sections)]


def _agreement(section: Section) -> tuple[str, ...]:
    tally = section.verdicts
    if not tally.compared:
        return (section.title, *("-",) * (len(AGREEMENT_HEADER) - 1))
    counts = (tally.compared, tally.reproduced, tally.better, tally.worse, tally.failed)
    return (section.title, *map(str, counts), f"{100 * tally.reproduced / tally.compared:.0f}%")


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def on_datasets(section: Section) -> str:
    """How many data sets a section has, and which one where it is one."""
    text = count(len(section.problems), "data set")
    return f"{text} ({section.problems[0].title})" if len(section.problems) == 1 else text


def on_verdicts(section: Section) -> str:
    """How the section compares with the published figures, and why some of it does not, in sentences."""
    reasons = "; ".join(section.obstacles)
    if reasons and not section.verdicts.compared:
        return f"Published figures are shown without a verdict: {reasons}."
    return f"Published figures: {section.verdicts}.{f' No verdict in some cells: {reasons}.' if reasons else ''}"


def summary(records: Sequence[Record], sections: Sequence[Section]) -> str:
    """A few lines for the command line."""
    failed = sum(record.error is not None for record in records)
    lines = [f"{len(records):,} trials, {failed:,} failed."]
    lines += [f"  {section.title}: {section.extent}; {section.verdicts}" for section in sections]
    total = sum((section.verdicts for section in sections), Tally())
    return "\n".join([*lines, f"All published figures: {total}."])


def markdown(
    records: Sequence[Record], sections: Sequence[Section], findings: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """The report as a Markdown document, methods as rows and data sets as columns.

    Notes stand at its head, paragraphs of findings end it.
    """
    head = "\n".join([*(f"- {name}: {value}" for name, value in overview(records)), *(f"- {note}" for note in notes)])
    parts = ["# splitpoint report", head, LEGEND, "## Agreement with the published figures"]
    parts += [rows_as_markdown(agreement(sections))]
    for section in sections:
        trials = f"{section.extent.capitalize()} in each cell."
        parts += [f"## {section.title}", f"{on_datasets(section)}. {trials} {on_verdicts(section)}"]
        if section.failures:
            parts += ["Failed:\n\n" + "\n".join(f"- {' '.join(failure.split())}" for failure in section.failures)]
        for table in section.tables:
            parts += _table(section, table)
    return "\n\n".join([*parts, *findings]) + "\n"


def _table(section: Section, table: Table) -> list[str]:
    """Heading, table and captions."""
    single = len(section.problems) == 1
    preference = "" if single else f" ({table.columns[0].metric.preference})"
    titles = [f"{c.title} {c.metric.sign}".strip() if single else c.title for c in table.columns]
    rows = [(section.place.row_kind, *titles)]
    for row in table.rows:
        cells = (_cell(table.entries.get((row, index)), column) for index, column in enumerate(table.columns))
        rows.append((section.row_title(row), *cells))
    parts = [f"### {table.title}{preference}", rows_as_markdown(rows)]
    if table.verdicts.compared and not single:
        parts.append(f"Published: {table.verdicts}.")
    parts += [*detection.captions(section, table), *controls.captions(section, table)]
    comparison = None if section.place.factor else compare_rows(table)
    if comparison:
        ranks = ", ".join(f"{facts.title(name)} {rank:.2f}" for name, rank in comparison.ranks.items())
        parts.append(
            f"Average ranks over {comparison.datasets} data sets (critical difference {comparison.difference:.2f}, "
            f"Friedman p = {comparison.p:.2g}): {ranks}."
        )
    return parts


def _cell(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return "-"
    text = entry.text(column.decimals)
    text = {1: f"**{text}**", 2: f"_{text}_"}.get(entry.place or 0, text)
    if entry.published is None:
        return text
    return f"{text} ({SIGNS.get(entry.verdict or '', NO_VERDICT)} {entry.published.text})"


def rows_as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head; the first column is flush left, the others right."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    rule = [":--", *("--:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))
