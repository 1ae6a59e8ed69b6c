"""Pieces of HTML that several parts of the page are made of: figures, tabs, and tables that sort."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from splitpoint.report.sections import Section
from splitpoint.report.tables import NO_VERDICT, SIGNS, Column, Entry, Table

MARKS = {1: "1st", 2: "2nd"}


def prose(text: str) -> str:
    """A paragraph."""
    return f'<p class="prose">{html.escape(text)}</p>'


def figure(drawn: str, caption: str, *, tiled: bool = False) -> str:
    """A drawing that scrolls sideways where it must, or several side by side, with a caption."""
    box = 'class="small-multiples"' if tiled else 'class="scroll" tabindex="0"'
    return f"<figure><div {box}>{drawn}</div><figcaption>{html.escape(caption)}</figcaption></figure>"


def panels(name: str, kind: str, contents: Sequence[tuple[str, str]]) -> str:
    """Titles and contents as panels, with tabs that are hidden until the script shows them; none for a single panel."""
    several = len(contents) > 1
    buttons = "".join(
        f'<button type="button" role="tab" id="tab-{name}-{index}" '
        f'aria-controls="panel-{name}-{index}">{html.escape(title)}</button>'
        for index, (title, _) in enumerate(contents)
    )
    tabs = f'<div class="tabs" role="tablist" aria-label="{html.escape(kind)}" hidden>{buttons}</div>'
    return (tabs if several else "") + "".join(
        f'<div class="panel" id="panel-{name}-{index}"'
        + (f' role="tabpanel" aria-labelledby="tab-{name}-{index}"' if several else "")
        + f"><h3>{html.escape(title)}</h3>{content}</div>"
        for index, (title, content) in enumerate(contents)
    )


def results(section: Section, table: Table) -> str:
    """A table in a box of its own that scrolls sideways where it must."""
    heads = "".join(_head(column, single=len(section.problems) == 1) for column in table.columns)
    body = "".join(_row(section, table, row) for row in table.rows)
    label = html.escape(f"{table.title}, {section.title}")
    kind = ' data-rows="method"' if not section.place.factor else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="results"{kind}>'
        f'<caption class="hidden">{label}</caption><thead><tr><th scope="col" aria-sort="none">'
        f'<button type="button">{html.escape(section.place.row_kind)}</button></th>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _head(column: Column, *, single: bool) -> str:
    """The head of a column; of a single problem it says what is measured and which way is better."""
    title, metric = column.title, column.metric
    if single:
        about = html.escape(f"{metric.about} ({metric.preference})".strip())
        label = html.escape(f"{title} {metric.sign}".strip())
        return f'<th scope="col" aria-sort="none"><button type="button" title="{about}">{label}</button></th>'
    name = html.escape(f"{column.problem} {title}".lower())
    button = f'<button type="button">{html.escape(title)}</button>'
    return f'<th scope="col" aria-sort="none" data-name="{name}">{button}</th>'


def _row(section: Section, table: Table, row: str) -> str:
    title = section.row_title(row)
    name = html.escape(f"{row} {title}".lower())
    cells = "".join(_cell(table.entries.get((row, index)), column) for index, column in enumerate(table.columns))
    return f'<tr data-name="{name}"><th scope="row">{html.escape(title)}</th>{cells}</tr>'


def _cell(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return '<td><span class="none" aria-label="not run">-</span></td>'
    text = html.escape(entry.text(column.decimals))
    if not entry.whole:
        text = f'<span class="{"broken" if entry.failed else "none"}">{text}</span>'
    elif entry.place in MARKS:
        tag = "strong" if entry.place == 1 else "em"
        text = f"<sup>{MARKS[entry.place]}</sup> <{tag}>{text}</{tag}>"
    value = f' data-value="{entry.mean:.10g}"' if math.isfinite(entry.mean) else ""
    return f"<td{value}>{text}{_published(entry)}</td>"


def _published(entry: Entry) -> str:
    if entry.published is None:
        return ""
    verdict = entry.verdict or "no verdict"
    where = html.escape(f"{verdict}; published {entry.published.text} in {entry.published.table}")
    return (
        f'<small class="{entry.verdict or "unjudged"}" title="{where}">'
        f'<span aria-hidden="true">{SIGNS.get(verdict, NO_VERDICT)}</span>'
        f'<span class="hidden">{verdict}, published </span> {html.escape(entry.published.text)}</small>'
    )
