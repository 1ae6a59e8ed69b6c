"""One HTML file with everything: no network, no libraries, readable without its script and without colour."""

from __future__ import annotations

import html
import string
from collections.abc import Sequence
from importlib import resources

from splitpoint.bench.record import Record
from splitpoint.report import curves, detection, names, plots
from splitpoint.report.curves import Curve
from splitpoint.report.gallery import gallery
from splitpoint.report.grid import as_html
from splitpoint.report.markup import figure, panel, tabs
from splitpoint.report.overview import count, overview, summary_rows, told_datasets, told_verdicts
from splitpoint.report.published import SOURCE
from splitpoint.report.ranks import Comparison, compare_rows
from splitpoint.report.sections import Section
from splitpoint.report.sheets import Sheet
from splitpoint.report.tables import Table


def page(
    records: Sequence[Record], sections: Sequence[Section], lines: Sequence[Curve], sheets: Sequence[Sheet] = ()
) -> str:
    """The report as one HTML document."""
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in overview(records))
    drawn = _galleries(sections, sheets)
    body = "".join(_section(section, _curves(section, lines), drawn.pop(section.slug, "")) for section in sections)
    return string.Template(_asset("page.html")).substitute(
        style=_asset("page.css"),
        script=_asset("page.js"),
        source=html.escape(SOURCE),
        facts=facts,
        summary=_summary(sections),
        suggested=html.escape(suggested(sections)),
        sections=body + _orphans(sections, lines) + "".join(drawn.values()),
    )


def suggested(sections: Sequence[Section]) -> str:
    """Words for the filter of data sets, each of which finds some: pictures without their network, or whole names.

    The first and the last of the first section that has several, since only there they are columns.
    """
    wide = [section for section in sections if len(section.datasets) > 1] or sections
    found = list(dict.fromkeys(name.partition("/")[0] for section in wide[:1] for name in section.datasets))
    return " ".join(dict.fromkeys([*found[:1], *found[-1:]]))


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


def _section(section: Section, above: str, below: str) -> str:
    tables = section.tables
    panels = "".join(
        panel(section.slug, index, len(tables), table.title, _results(section, table))
        for index, table in enumerate(tables)
    )
    return (
        f'<section id="{section.slug}"><h2>{html.escape(section.title)}</h2>'
        f'<p class="prose">{_rows(section)}, {html.escape(told_datasets(section))}, '
        f"{section.extent} in each cell. {html.escape(told_verdicts(section))}</p>"
        f"{_failures(section)}{above}{_scatter(section)}"
        f"{tabs(section.slug, 'Measure', [table.title for table in tables])}{panels}{below}</section>\n"
    )


def _rows(section: Section) -> str:
    if section.place.factor:
        return f"{count(len(section.rows), 'value')} of {html.escape(section.row_kind)}"
    return count(len(section.rows), "method")


def _failures(section: Section) -> str:
    if not section.failures:
        return ""
    items = "".join(f"<li>{html.escape(said)}</li>" for said in section.failures)
    failed = count(len(section.failures), "trial")
    return f'<details class="broken"><summary>{failed} failed</summary><ul>{items}</ul></details>'


def _results(section: Section, table: Table) -> str:
    about = ""
    if len(section.datasets) > 1:
        measure = table.columns[0].measure
        verdicts = f" Published: {table.verdicts}." if table.verdicts.compared else ""
        about = _prose(f"{measure.about} {measure.preference.capitalize()}.{verdicts}".strip())
    captions = "".join(map(_prose, detection.told(section, table)))
    figures = _dependences(table) if plots.numeric(section) else ""
    comparison = None if section.place.factor else compare_rows(table)
    ranks = _ranks(comparison) if comparison else ""
    return f"{about}{as_html(section, table)}{captions}{figures}{ranks}"


def _prose(said: str) -> str:
    return f'<p class="prose">{html.escape(said)}</p>'


def _dependences(table: Table) -> str:
    drawn = "".join(plots.dependence(table, index) for index in range(len(table.columns)))
    return figure(drawn, "Full: these records, with two standard errors. Hollow and dashed: published.", tiled=True)


def _ranks(comparison: Comparison) -> str:
    caption = (
        f"Average ranks over {comparison.datasets} data sets, best at the left; a bar joins methods that the Nemenyi "
        f"test does not tell apart at 0.05. Friedman: χ² = {comparison.chi_square:.1f}, p = {comparison.p:.2g}."
    )
    return figure(plots.critical_difference(comparison), caption + _missing(comparison.left_out))


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
    return figure(plots.coverage_against_width(shown), caption + _missing(left_out))


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
    return figure("".join(curves.draw(lines)), caption, tiled=True)


def _galleries(sections: Sequence[Section], sheets: Sequence[Sheet]) -> dict[str, str]:
    """Figures by the slug of the section with their protocol and data set; those without one are a section."""
    homes = {
        (section.place.protocol, dataset): section.slug
        for section in sections
        if section.place.suite == "images"
        for dataset in section.datasets
    }
    grouped: dict[str, list[Sheet]] = {}
    for sheet in sheets:
        grouped.setdefault(homes.get((sheet.protocol, sheet.dataset), ""), []).append(sheet)
    drawn = {slug: gallery(slug, own) for slug, own in grouped.items()}
    if "" in drawn:
        title = html.escape(names.SUITES["images"])
        drawn[""] = f"<section><h2>{title}</h2>{drawn['']}</section>\n"
    return drawn
