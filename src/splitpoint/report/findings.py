"""Sections that no table of one experiment has room for: words and grids of text, made of several experiments."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from splitpoint.report.markup import prose
from splitpoint.report.text import rows_as_markdown


@dataclass(frozen=True)
class Grid:
    """A table of text.

    Attributes:
        title: above it.
        head: of the columns.
        rows: each as long as the head; the first cell names the row.
        shares: of every cell but the first, from 0 to 1, by which pages shade it; empty for a plain table.
        note: below it.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[tuple[float, ...], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """A section: its title, and paragraphs and grids in order."""

    title: str
    parts: tuple[str | Grid, ...]

    @property
    def slug(self) -> str:
        """A name for links."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def as_markdown(findings: Sequence[Finding]) -> list[str]:
    """Paragraphs of Markdown."""
    lines = []
    for finding in findings:
        lines.append(f"## {finding.title}")
        for part in finding.parts:
            if isinstance(part, str):
                lines.append(part)
                continue
            lines += [f"### {part.title}", rows_as_markdown([part.head, *part.rows])]
            lines += [part.note] if part.note else []
    return lines


def as_page(findings: Sequence[Finding]) -> str:
    """Sections of a page."""
    return "".join(
        f'<section id="{finding.slug}"><h2>{html.escape(finding.title)}</h2>'
        + "".join(prose(part) if isinstance(part, str) else _grid(part) for part in finding.parts)
        + "</section>\n"
        for finding in findings
    )


def _grid(grid: Grid) -> str:
    heads = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in grid.head)
    body = ""
    for place, row in enumerate(grid.rows):
        shares = grid.shares[place] if grid.shares else ()
        cells = "".join(
            f"<td{_shade(shares[number]) if shares else ''}>{html.escape(cell)}</td>"
            for number, cell in enumerate(row[1:])
        )
        body += f'<tr><th scope="row">{html.escape(row[0])}</th>{cells}</tr>'
    label = html.escape(grid.title)
    return (
        f'<h3>{label}</h3><div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        + (prose(grid.note) if grid.note else "")
    )


def _shade(share: float) -> str:
    """A background as strong as the share."""
    return f' style="background:color-mix(in srgb,var(--blue) {round(60 * min(max(share, 0), 1))}%,transparent)"'
