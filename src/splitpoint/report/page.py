"""One HTML file with everything: no network, no libraries, readable without its script and without colour."""

from __future__ import annotations

import html
import string
from collections.abc import Sequence
from importlib import resources

from splitpoint.bench.record import Record
from splitpoint.report import curves, names, plots
from splitpoint.report.curves import Curve
from splitpoint.report.grid import as_html
from splitpoint.report.overview import overview, summary_rows, told_verdicts
from splitpoint.report.published import SOURCE
from splitpoint.report.ranks import Comparison, compare_rows
from splitpoint.report.sections import Section
from splitpoint.report.tables import Table


def page(records: Sequence[Record], sections: Sequence[Section], lines: Sequence[Curve]) -> str:
    """The report as one HTML document."""
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in overview(records))
    body = "".join(_section(section, _curves(section, lines)) for section in sections) + _orphans(sections, lines)
    return string.Template(_asset("page.html")).substitute(
        style=_asset("page.css"),
        script=_asset("page.js"),
        source=html.escape(SOURCE),
        facts=facts,
        summary=_summary(sections),
        sections=body,
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _summary(sections: Sequence[Section]) -> str:
    head, *rows = summary_rows(sections)
    heads = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row"><a href="#{section.slug}">{html.escape(section.title)}</a></th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for section, row in zip(sections, rows, strict=True)
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Agreement with the published figures">'
        f'<table class="summary"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _section(section: Section, figures: str) -> str:
    panels = "".join(_panel(section, table, index) for index, table in enumerate(section.tables))
    return (
        f'<section id="{section.slug}"><h2>{html.escape(section.title)}</h2>'
        f'<p class="prose">{_rows(section)}, {_count(len(section.datasets), "data set")}, '
        f"{section.extent} in each cell. {html.escape(told_verdicts(section))}</p>"
        f"{_failures(section)}{figures}{_scatter(section)}{_tabs(section)}{panels}</section>\n"
    )


def _rows(section: Section) -> str:
    if section.place.factor:
        return f"{_count(len(section.rows), 'value')} of {html.escape(section.row_kind)}"
    return _count(len(section.rows), "method")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _failures(section: Section) -> str:
    if not section.failures:
        return ""
    items = "".join(f"<li>{html.escape(said)}</li>" for said in section.failures)
    count = _count(len(section.failures), "trial")
    return f'<details class="broken"><summary>{count} failed</summary><ul>{items}</ul></details>'


def _tabs(section: Section) -> str:
    if len(section.tables) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" role="tab" id="tab-{section.slug}-{index}" '
        f'aria-controls="panel-{section.slug}-{index}">{html.escape(table.title)}</button>'
        for index, table in enumerate(section.tables)
    )
    return f'<div class="tabs" role="tablist" aria-label="Measure" hidden>{buttons}</div>'


def _panel(section: Section, table: Table, index: int) -> str:
    name = f"{section.slug}-{index}"
    roles = f' role="tabpanel" aria-labelledby="tab-{name}"' if len(section.tables) > 1 else ""
    about = ""
    if len(section.datasets) > 1:
        measure = table.columns[0].measure
        verdicts = f" Published: {table.verdicts}." if table.verdicts.compared else ""
        said = f"{measure.about} {measure.preference.capitalize()}.{verdicts}".strip()
        about = f'<p class="prose">{html.escape(said)}</p>'
    figures = _dependences(table) if plots.numeric(section) else ""
    comparison = None if section.place.factor else compare_rows(table)
    ranks = _ranks(comparison) if comparison else ""
    return (
        f'<div class="panel" id="panel-{name}"{roles}><h3>{html.escape(table.title)}</h3>{about}'
        f"{as_html(section, table)}{figures}{ranks}</div>"
    )


def _figure(drawn: str, caption: str, *, tiled: bool = False) -> str:
    box = 'class="small-multiples"' if tiled else 'class="scroll" tabindex="0"'
    return f"<figure><div {box}>{drawn}</div><figcaption>{html.escape(caption)}</figcaption></figure>"


def _dependences(table: Table) -> str:
    drawn = "".join(plots.dependence(table, index) for index in range(len(table.columns)))
    return _figure(drawn, "Full: these records, with two standard errors. Hollow and dashed: published.", tiled=True)


def _ranks(comparison: Comparison) -> str:
    caption = (
        f"Average ranks over {comparison.datasets} data sets, best at the left; a bar joins methods that the Nemenyi "
        f"test does not tell apart at 0.05. Friedman: χ² = {comparison.chi_square:.1f}, p = {comparison.p:.2g}."
    )
    return _figure(plots.critical_difference(comparison), caption + _missing(comparison.left_out))


def _missing(methods: Sequence[str]) -> str:
    listed = ", ".join(names.title(name) for name in methods)
    return f" Left out for want of a number on every data set: {listed}." if listed else ""


def _scatter(section: Section) -> str:
    shown = [] if section.place.factor else plots.marks(section)
    if len(shown) < 2:
        return ""
    caption = (
        "Coverage against width, relative to the median method of each data set; best is on the dashed line, left."
    )
    if len(section.datasets) > 1:
        caption += " Averages over the data sets; lines span the single ones."
    left_out = [row for row in section.rows if row not in {mark.method for mark in shown}]
    return _figure(plots.coverage_against_width(shown), caption + _missing(left_out))


def _curves(section: Section, lines: Sequence[Curve]) -> str:
    mine = [line for line in lines if line.noise == section.place.noise]
    if section.place.suite != "cubic" or section.place.factor or not mine:
        return ""
    return _curve_figure(mine)


def _orphans(sections: Sequence[Section], lines: Sequence[Curve]) -> str:
    """Curves of a noise for which there are no records."""
    drawn = {s.place.noise for s in sections if s.place.suite == "cubic" and not s.place.factor}
    noises = names.ordered((line.noise for line in lines if line.noise not in drawn), names.NOISES)
    return "".join(
        f"<section><h2>{html.escape(names.SUITES['cubic'])}, {html.escape(names.title(noise, names.NOISES))}</h2>"
        f"{_curve_figure([line for line in lines if line.noise == noise])}</section>\n"
        for noise in noises
    )


def _curve_figure(lines: Sequence[Curve]) -> str:
    caption = (
        "Above: prediction and 95% interval, truth dashed, training rows dotted. Below: epistemic score, each on its "
        "own scale. Shaded: the range of the training inputs."
    )
    return _figure("".join(curves.draw(lines)), caption, tiled=True)
