"""A verdict: all parts with their lights, the light of the whole, and its reasons."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from splitpoint.errors import StorageError
from splitpoint.files import write_text
from splitpoint.verdict.judging import FALSE_ALARMS, LIGHTS, Finding, Light, answered, overall
from splitpoint.verdict.parts import Part

HEADLINES: Mapping[Light, str] = {
    "green": "On rows like these its uncertainty can be trusted.",
    "yellow": "Its uncertainty can be used with care.",
    "red": "Do not rely on its uncertainty as it is.",
    "unknown": "Nobody can tell with so few rows.",
}
FORMAT = 1
"""Of `Verdict.to_dict`."""


@dataclass(frozen=True)
class Judged:
    """A part of the page and what was found, the gravest first."""

    part: Part
    findings: tuple[Finding, ...]

    @property
    def light(self) -> Light:
        """The gravest one; "cannot tell" where that is so of what matters, or of everything."""
        return overall(self.findings)


@dataclass(frozen=True)
class Verdict:
    """One page on one predictor: what was measured on labelled rows, how sure that is, and what follows.

    Attributes:
        light: "green", "yellow", "red", or "unknown" where nobody can tell.
        headline: the same in words.
        reasons: what the light is owed to, the gravest first.
        findings: every statement, with number, 95% error bar and light.
        figures: flat numbers by stable names, such as "coverage", "width_ratio", "ece", "auroc_error" and "flag_rate".
        identity: what was judged: model, predictor, settings, data, versions.
        parts: the sections of the page.
        questions: how many numbers were held against a promise; all of them share one probability of a false alarm.
    """

    light: Light
    headline: str
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    figures: Mapping[str, float]
    identity: Mapping[str, str]
    parts: tuple[Judged, ...]
    questions: int

    def __str__(self) -> str:
        """Light, reasons and all statements as text."""
        lines = [f"{LIGHTS[self.light].upper()}: {self.headline}", *(f"  - {reason}" for reason in self.reasons)]
        for judged in self.parts:
            if judged.findings:
                lines += ["", f"{judged.part.title}: {LIGHTS[judged.light]}"]
                lines += [f"  {LIGHTS[one.light]:<12}{one.statement}" for one in judged.findings]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything on the page as JSON has it, None for what is no finite number.

        Keys: "format", "light", "headline", "reasons", "figures", "identity", "questions", "false_alarms", "findings"
        (a list), and "parts", by name: "coverage" and "width" or "probabilities" and "sets", "ranking", "ood", "flags",
        "rows", "cost" and "worst", each with "charts", "plots" and "tables" by name.
        """
        findings = [{"part": judged.part.name} | asdict(one) for judged in self.parts for one in judged.findings]
        found = {
            "format": FORMAT,
            "light": self.light,
            "headline": self.headline,
            "reasons": self.reasons,
            "figures": dict(self.figures),
            "identity": dict(self.identity),
            "questions": self.questions,
            "false_alarms": FALSE_ALARMS,
            "findings": findings,
            "parts": {judged.part.name: _described(judged.part) for judged in self.parts},
        }
        ready: dict[str, Any] = _finite(found)
        return ready

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page as one HTML file, whole or not at all; it needs nothing from elsewhere."""
        from splitpoint.verdict.page import page  # drags in reports, which a verdict without a page is spared

        place = Path(path)
        if place.is_dir() or not place.parent.is_dir():
            raise StorageError(f"Expected a file to write, in a folder that exists, but got {place}; name another one.")
        write_text(place, page(self))


def conclude(parts: Iterable[Part], identity: Mapping[str, str], figures: Mapping[str, float]) -> Verdict:
    """Judge all questions of all parts together."""
    parts = list(parts)
    asked = [question for part in parts for question in part.questions]
    alpha = FALSE_ALARMS / max(len(asked), 1)
    order = list(LIGHTS)
    judged = []
    for part in parts:
        found = [*part.findings, *(answered(question, alpha) for question in part.questions)]
        judged.append(Judged(part, tuple(sorted(found, key=lambda one: order.index(one.light)))))
    findings = tuple(finding for one in judged for finding in one.findings)
    light = overall(findings)
    lost = [finding for finding in findings if finding.key and finding.light == "unknown"]
    whole = dict(figures)
    for part in parts:
        whole |= part.figures
    return Verdict(
        light, HEADLINES[light], _reasons(light, findings, lost), findings, whole, identity, tuple(judged), len(asked)
    )


def _reasons(light: Light, findings: Sequence[Finding], lost: Sequence[Finding]) -> tuple[str, ...]:
    """Everything red and yellow; what cannot be told of what matters; for green, what was promised and kept."""
    grave = [one for kind in ("red", "yellow") for one in findings if one.light == kind]
    told = [f"{one.statement} {one.advice}".strip() for one in grave if not one.minor]
    parts = [one for one in grave if one.minor]
    if parts:
        more = f" It is one of {len(parts)} such parts." if len(parts) > 1 else ""
        told.append(f"{parts[0].statement} {parts[0].advice}{more}")
    told += [f"{one.statement} {one.advice}".strip() for one in lost]
    if light == "green":
        told += [one.statement for one in findings if one.key]
        fine = sum(one.light == "green" for one in findings) - len(told)
        open_ones = sum(one.light == "unknown" for one in findings)
        told.append(f"{fine} other statements are fine" + (f"; {open_ones} cannot be told." if open_ones else "."))
    return tuple(told)


def _described(part: Part) -> dict[str, Any]:
    found: dict[str, Any] = {"title": part.title, "about": part.about, "figures": dict(part.figures)}
    for name in ("charts", "plots", "tables"):
        found[name] = {one.name: asdict(one) for one in getattr(part, name)}
    for name in ("reliability", "histogram"):
        if getattr(part, name) is not None:
            found[name] = dict(getattr(part, name))
    return found


def _finite(value: Any) -> Any:
    """None for what JSON has no number for, at any depth."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
