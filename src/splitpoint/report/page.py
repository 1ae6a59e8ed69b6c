"""One HTML file with everything: no network, no libraries, readable without its script and without colour."""

from __future__ import annotations

import html
import string
from collections.abc import Sequence
from importlib import resources

from splitpoint.bench.artefacts import Artefact
from splitpoint.bench.record import Record
from splitpoint.report import controls, detection, facts, gallery, plots
from splitpoint.report.facts import Problem
from splitpoint.report.findings import Finding, as_page
from splitpoint.report.markup import figure, panels, prose, results
from splitpoint.report.published import SOURCE
from splitpoint.report.ranks import Comparison, compare_rows
from splitpoint.report.sections import Place, Section
from splitpoint.report.tables import Table
from splitpoint.report.text import agreement, count, on_datasets, on_verdicts, overview


def page(
    records: Sequence[Record],
    sections: Sequence[Section],
    artefacts: Sequence[Artefact] = (),
    findings: Sequence[Finding] = (),
    notes: Sequence[str] = (),
) -> str:
    """The report as one HTML document; the notes stand at its head."""
    told = [*overview(records), *(("Note", note) for note in notes)]
    head = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in told)
    homes = {(section.place, problem): section.slug for section in sections for problem in section.problems}
    at_home: dict[str, list[Artefact]] = {}
    homeless: dict[Place, list[Artefact]] = {}
    for artefact in artefacts:
        place = Place.of(artefact.cell)
        slug = homes.get((place, Problem.of(artefact.cell)))
        (homeless.setdefault(place, []) if slug is None else at_home.setdefault(slug, [])).append(artefact)
    body = [_section(section, at_home.get(section.slug, [])) for section in sections]
    body += [_figures_only(place, homeless[place], index) for index, place in enumerate(homeless)]
    return string.Template(asset("page.html")).substitute(
        style=asset("page.css"),
        script=asset("page.js"),
        source=html.escape(SOURCE),
        facts=head,
        summary=_summary(sections),
        suggested=html.escape(suggested(sections)),
        sections="".join(body) + as_page(findings),
    )


def suggested(sections: Sequence[Section]) -> str:
    """Words for the filter of data sets, each of which finds some.

    The first and the last of the first section that has several, since only there they are columns.
    """
    wide = [section for section in sections if len(section.problems) > 1] or sections
    found = [problem.dataset for section in wide[:1] for problem in section.problems]
    return " ".join(dict.fromkeys([*found[:1], *found[-1:]]))


def asset(name: str) -> str:
    """The text of a file that pages are made of, such as the style sheet ``page.css``."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _summary(sections: Sequence[Section]) -> str:
    head, *rows = agreement(sections)
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


def _section(section: Section, artefacts: Sequence[Artefact]) -> str:
    above, below = (gallery.drawn(kinds, section.slug, artefacts) for kinds in (gallery.ABOVE, gallery.BELOW))
    tables = panels(section.slug, "Measure", [(table.title, _results(section, table)) for table in section.tables])
    return (
        f'<section id="{section.slug}"><h2>{html.escape(section.title)}</h2>'
        f'<p class="prose">{_rows(section)}, {html.escape(on_datasets(section))}, '
        f"{section.extent} in each cell. {html.escape(on_verdicts(section))}</p>"
        f"{_failures(section)}{above}{_scatter(section)}{tables}{below}</section>\n"
    )


def _figures_only(place: Place, artefacts: Sequence[Artefact], index: int) -> str:
    """A section of artefacts for which there are no records."""
    title = place.title(images=all(artefact.cell.network for artefact in artefacts))
    drawn = gallery.drawn({**gallery.ABOVE, **gallery.BELOW}, f"figures-{index}", artefacts)
    return f"<section><h2>{html.escape(title)}</h2>{drawn}</section>\n"


def _rows(section: Section) -> str:
    if section.place.factor:
        return f"{count(len(section.rows), 'value')} of {html.escape(section.place.row_kind)}"
    return count(len(section.rows), "method")


def _failures(section: Section) -> str:
    if not section.failures:
        return ""
    items = "".join(f"<li>{html.escape(failure)}</li>" for failure in section.failures)
    failed = count(len(section.failures), "trial")
    return f'<details class="broken"><summary>{failed} failed</summary><ul>{items}</ul></details>'


def _results(section: Section, table: Table) -> str:
    """A table with what is measured, captions and figures."""
    about = ""
    if len(section.problems) > 1:
        metric = table.columns[0].metric
        verdicts = f" Published: {table.verdicts}." if table.verdicts.compared else ""
        about = prose(f"{metric.about} {metric.preference.capitalize()}.{verdicts}".strip())
    captions = "".join(map(prose, (*detection.captions(section, table), *controls.captions(section, table))))
    figures = _dependences(table) if plots.numeric(section) else ""
    comparison = None if section.place.factor else compare_rows(table)
    ranks = _ranks(comparison) if comparison else ""
    return f"{about}{results(section, table)}{captions}{figures}{ranks}"


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
    listed = ", ".join(map(facts.title, methods))
    return f" Left out for want of a number on every data set: {listed}." if listed else ""


def _scatter(section: Section) -> str:
    shown = [] if section.place.factor else plots.marks(section)
    if len(shown) < 2:
        return ""
    caption = (
        "Coverage against width, relative to the median method of each data set; best is on the dashed line, left."
    )
    if len(section.problems) > 1:
        caption += " Averages over the data sets; lines span the single ones."
    left_out = [row for row in section.rows if row not in {mark.method for mark in shown}]
    return figure(plots.coverage_against_width(shown), caption + _missing(left_out))
