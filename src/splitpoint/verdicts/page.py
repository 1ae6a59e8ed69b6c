"""The page of a verdict: one HTML document without a script, and without anything from elsewhere."""

from __future__ import annotations

import html
import re
import string
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from splitpoint.bench.artefacts import Histogram, Reliability
from splitpoint.report import gallery
from splitpoint.report.markup import figure, prose
from splitpoint.report.page import asset
from splitpoint.verdicts.drawings import chart, plot
from splitpoint.verdicts.judging import FALSE_ALARMS, LIGHTS, Finding, Light
from splitpoint.verdicts.parts import Part, Table

if TYPE_CHECKING:
    from splitpoint.verdicts.result import Judged, Verdict

READING = (
    "Numbers in brackets are 95% error bars of each number by itself: exact for shares (Clopper-Pearson), by the "
    "influence of every row for the rest (DeLong for AUROC). Entries of one row do not count as independent.",
    "Red and yellow: a number is off by enough to matter, and by more than chance explains. {questions} numbers on "
    "this page are held against a promise; their bounds are widened (Bonferroni) so that chance alone turns any light "
    "of a page without faults yellow or red with a probability of at most {alarms:.0%}.",
    "Green: the error bar excludes that the number is badly off. Cannot tell: it does not, but it does not show that "
    "it is off either; more rows would tell. It says so of the whole where it is so of what matters most.",
    "All this holds for rows like the test rows. Nothing follows for others.",
)


def page(verdict: Verdict) -> str:
    """The verdict as one HTML document."""
    model = verdict.identity.get("model", "")
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    reading = (text.format(questions=verdict.questions, alarms=FALSE_ALARMS) for text in READING)
    return string.Template(template).substitute(
        title=html.escape(f"Verdict on {model}".strip()),
        style=asset("page.css"),
        verdict=_verdict(verdict),
        summary=_summary(verdict),
        sections="".join(map(_section, verdict.parts)),
        identity="".join(
            f"<dt>{html.escape(name)}</dt><dd>{html.escape(said)}</dd>" for name, said in verdict.identity.items()
        ),
        reading="".join(map(prose, reading)),
    )


def light(value: Light) -> str:
    """A light, which shape and word tell without its colour."""
    return f'<span class="light {value}">{LIGHTS[value]}</span>'


def _verdict(verdict: Verdict) -> str:
    reasons = "".join(f"<li>{_said(reason)}</li>" for reason in verdict.reasons)
    return (
        f'<div class="verdict {verdict.light}">{light(verdict.light)}'
        f'<p class="headline">{html.escape(verdict.headline)}</p><ul>{reasons}</ul></div>'
    )


def _summary(verdict: Verdict) -> str:
    items = "".join(
        f'<li>{light(one.light)}<a href="#{one.part.name}">{html.escape(one.part.title)}</a></li>'
        for one in verdict.parts
        if one.findings
    )
    return f'<ul class="summary-lights">{items}</ul>'


def _section(judged: Judged) -> str:
    part = judged.part
    folded = [one for one in judged.findings if one.minor and one.light == "green"]
    shown = [one for one in judged.findings if one not in folded]
    more = (
        f"<details><summary>{len(folded)} more that are fine</summary>{_findings(folded)}</details>" if folded else ""
    )
    head = html.escape(part.title) + (light(judged.light) if judged.findings else "")
    drawn = _drawings(part)
    figures = figure(drawn, part.note, tiled=True) if drawn else ""
    tables = "".join(map(_table, part.tables))
    return (
        f'<section id="{part.name}"><h2>{head}</h2>{prose(part.about)}{_findings(shown)}{more}{figures}{tables}'
        "</section>\n"
    )


def _findings(shown: Sequence[Finding]) -> str:
    items = "".join(
        f"<li>{light(one.light)}<div>{_said(one.statement)}"
        + (f"<small>{_said(one.advice)}</small>" if one.advice else "")
        + "</div></li>"
        for one in shown
    )
    return f'<ul class="findings">{items}</ul>' if items else ""


def _drawings(part: Part) -> str:
    found = [gallery.reliability("Reliability", *_reliabilities(part.reliability))] if part.reliability else []
    found += [chart(one) for one in part.charts if one.bars]
    found += [plot(one) for one in part.plots]
    found += [gallery.histogram("Support", Histogram(**part.histogram))] if part.histogram else []
    return "".join(found)


def _reliabilities(shown: Mapping[str, Any]) -> tuple[Reliability, Reliability]:
    before, after = (
        Reliability(*(tuple(shown[name][key]) for key in ("confidence", "accuracy", "count")))
        for name in ("base", "calibrated")
    )
    return before, after


def _table(shown: Table) -> str:
    picture = '<th scope="col">image</th>' if shown.images else ""
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in shown.head)
    images = shown.images or ("",) * len(shown.rows)
    body = "".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + (
            f'<td><img src="data:image/png;base64,{image}" width="56" alt="input of row {html.escape(first)}"></td>'
            if image
            else "<td></td>"
            if shown.images
            else ""
        )
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for (first, *cells), image in zip(shown.rows, images, strict=True)
    )
    first, rest = head.split("</th>", 1)
    return (
        f'<div class="scroll worst" tabindex="0" role="region" aria-label="{html.escape(shown.name)}"><table><thead>'
        f"<tr>{first}</th>{picture}{rest}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _said(text: str) -> str:
    """Text whose names in backticks are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
