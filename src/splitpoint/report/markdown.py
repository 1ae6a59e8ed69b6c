"""The same tables as Markdown, methods as rows and data sets as columns."""

from __future__ import annotations

from collections.abc import Sequence

from splitpoint.bench.record import Record
from splitpoint.report import detection, names
from splitpoint.report.grid import NO_VERDICT, SIGNS
from splitpoint.report.overview import overview, summary_rows, told_datasets, told_verdicts
from splitpoint.report.published import SOURCE
from splitpoint.report.ranks import compare_rows
from splitpoint.report.sections import Section
from splitpoint.report.tables import Column, Entry, Table

LEGEND = (
    "Mean over trials ± standard error; **best** and _second_ as printed. In brackets the figure published by "
    f"{SOURCE}, with the verdict: {SIGNS['reproduced']} reproduced (within two standard errors of the difference plus "
    f"half a unit of the last published digit), {SIGNS['better']} better, {SIGNS['worse']} worse, {SIGNS['failed']} "
    f"failed trials, {NO_VERDICT} no verdict (not comparable, or one trial). A cell with failed trials has no mean."
)


def markdown(records: Sequence[Record], sections: Sequence[Section]) -> str:
    """The report as a Markdown document."""
    facts = "\n".join(f"- {name}: {value}" for name, value in overview(records))
    parts = ["# splitpoint report", facts, LEGEND, "## Agreement with the published figures"]
    parts += [rows_as_markdown(summary_rows(sections))]
    for section in sections:
        parts += [f"## {section.title}", _told(section)]
        if section.failures:
            parts += ["Failed:\n\n" + "\n".join(f"- {' '.join(said.split())}" for said in section.failures)]
        for table in section.tables:
            parts += _table(section, table)
    return "\n\n".join(parts) + "\n"


def _told(section: Section) -> str:
    return f"{told_datasets(section)}. {section.extent.capitalize()} in each cell. {told_verdicts(section)}"


def _table(section: Section, table: Table) -> list[str]:
    measure = table.columns[0].measure
    single = len(section.datasets) == 1
    heading = f"### {table.title}" if single else f"### {table.title} ({measure.preference})"
    titles = [f"{c.title} {c.measure.sign}".strip() if single else c.title for c in table.columns]
    rows = [(section.row_kind, *titles)]
    for row in table.rows:
        cells = (_cell(table.entries.get((row, index)), column) for index, column in enumerate(table.columns))
        rows.append((row if section.place.factor else names.title(row), *cells))
    parts = [heading, rows_as_markdown(rows)]
    if table.verdicts.compared and not single:
        parts.append(f"Published: {table.verdicts}.")
    parts += detection.told(section, table)
    comparison = None if section.place.factor else compare_rows(table)
    if comparison:
        ranks = ", ".join(f"{names.title(name)} {rank:.2f}" for name, rank in comparison.ranks.items())
        parts.append(
            f"Average ranks over {comparison.datasets} data sets (critical difference {comparison.difference:.2f}, "
            f"Friedman p = {comparison.p:.2g}): {ranks}."
        )
    return parts


def _cell(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return "-"
    said = entry.text(column.decimals)
    said = {1: f"**{said}**", 2: f"_{said}_"}.get(entry.place or 0, said)
    if entry.published is None:
        return said
    return f"{said} ({SIGNS.get(entry.verdict or '', NO_VERDICT)} {entry.published.text})"


def rows_as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head; the first column is flush left, the others right."""
    head, *body = (["".join("\\|" if letter == "|" else letter for letter in cell) for cell in row] for row in rows)
    rule = [":--", *("--:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))
