"""Tables as HTML: sortable by column, and verdicts that can be told without colour."""

from __future__ import annotations

import html
import math

from splitpoint.report import names
from splitpoint.report.sections import Section
from splitpoint.report.tables import Column, Entry, Table

SIGNS = {"reproduced": "=", "better": "▲", "worse": "▼", "failed": "✕"}
"""Signs of the verdicts."""

NO_VERDICT = "○"
"""Sign of a published figure without a verdict."""

MARKS = {1: "1st", 2: "2nd"}


def as_html(section: Section, table: Table) -> str:
    """The table in a box of its own that scrolls sideways where it must."""
    single = len(section.datasets) == 1
    heads = "".join(_head(column, single) for column in table.columns)
    body = "".join(_row(section, table, row) for row in table.rows)
    label = html.escape(f"{table.title}, {section.title}")
    kind = ' data-rows="method"' if not section.place.factor else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="results"{kind}>'
        f'<caption class="hidden">{label}</caption><thead><tr><th scope="col" aria-sort="none">'
        f'<button type="button">{html.escape(section.row_kind)}</button></th>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _head(column: Column, single: bool) -> str:
    if single:
        sign = f" {column.measure.sign}" if column.measure.sign else ""
        about = f' title="{html.escape(f"{column.measure.about} ({column.measure.preference})".strip())}"'
        said = f'<button type="button"{about}>{html.escape(column.title)}{sign}</button>'
        return f'<th scope="col" aria-sort="none">{said}</th>'
    name = html.escape(f"{column.dataset} {column.title}".lower())
    said = f'<button type="button">{html.escape(column.title)}</button>'
    return f'<th scope="col" aria-sort="none" data-name="{name}">{said}</th>'


def _row(section: Section, table: Table, row: str) -> str:
    title = row if section.place.factor else names.title(row)
    name = html.escape(f"{row} {title}".lower())
    cells = "".join(_cell(table.entries.get((row, index)), column) for index, column in enumerate(table.columns))
    return f'<tr data-name="{name}"><th scope="row">{html.escape(title)}</th>{cells}</tr>'


def _cell(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return '<td><span class="none" aria-label="not run">-</span></td>'
    said = html.escape(entry.text(column.decimals))
    if not entry.whole:
        said = f'<span class="{"broken" if entry.failed else "none"}">{said}</span>'
    elif entry.place in MARKS:
        tag = "strong" if entry.place == 1 else "em"
        said = f"<sup>{MARKS[entry.place]}</sup> <{tag}>{said}</{tag}>"
    value = f' data-value="{_sortable(entry.mean)}"' if math.isfinite(entry.mean) else ""
    return f"<td{value}>{said}{_published(entry)}</td>"


def _published(entry: Entry) -> str:
    if entry.published is None:
        return ""
    sign = SIGNS.get(entry.verdict or "", NO_VERDICT)
    verdict = entry.verdict or "no verdict"
    where = html.escape(f"{verdict}; published {entry.published.text} in {entry.published.table}")
    style = entry.verdict or "unjudged"
    return (
        f'<small class="{style}" title="{where}"><span aria-hidden="true">{sign}</span>'
        f'<span class="hidden">{verdict}, published </span> {html.escape(entry.published.text)}</small>'
    )


def _sortable(value: float) -> str:
    return f"{value:.10g}"
