"""Whether a score of ours finds more than the entropy of the softmax of the same network does, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from splitpoint.report import names
from splitpoint.report.sections import Section
from splitpoint.report.tables import Entry, Table

MEASURES = ("auroc_error", "auroc_adv", "auroc_ood")
OURS = ("splitpoint_default", "splitpoint_default_calibrated", "splitpoint_layers")
RIVAL = "softmax"
OPENING = "Against the entropy of the softmax of the same network (level: within two combined standard errors)"

Outcome = Literal["ahead", "level", "behind", "not judged"]
OUTCOMES: tuple[Outcome, ...] = ("ahead", "level", "behind", "not judged")


def told(section: Section, table: Table) -> tuple[str, ...]:
    """A caption for each detection measure of a table: where ours is ahead of the entropy, and where it is not.

    "level" means a difference of at most ``2 sqrt(se1^2 + se2^2)``; without standard errors nothing is judged.
    """
    shown = dict.fromkeys(column.measure for column in table.columns)
    found = ((measure, _told(section, measure.name)) for measure in shown if measure.name in MEASURES)
    return tuple(said if len(shown) == 1 else f"{measure.title}. {said}" for measure, said in found if said)


def _told(section: Section, measure: str) -> str:
    """Methods with the same outcomes share a sentence."""
    methods: dict[tuple[tuple[str, Outcome], ...], list[str]] = {}
    for method in OURS:
        outcomes = _outcomes(section, method, measure)
        if outcomes:
            methods.setdefault(outcomes, []).append(names.title(method))
    if not methods:
        return ""
    sentences = [
        f"{' and '.join(filter(None, (', '.join(titles[:-1]), titles[-1])))} "
        f"{'is' if len(titles) == 1 else 'are'} {_counted(outcomes)}."
        for outcomes, titles in methods.items()
    ]
    return " ".join([f"{OPENING}:", *sentences])


def _outcomes(section: Section, method: str, measure: str) -> tuple[tuple[str, Outcome], ...]:
    """How the method compares on every data set on which both were run."""
    pairs = (
        (
            dataset,
            section.entries.get((method, dataset, measure)),
            section.entries.get((RIVAL, dataset, f"{measure}_entropy")),
        )
        for dataset in section.datasets
    )
    return tuple((dataset, outcome(ours, rival)) for dataset, ours, rival in pairs if ours and rival)


def outcome(ours: Entry, rival: Entry) -> Outcome:
    """How a number of which higher is better compares with another.

    >>> outcome(Entry(4, mean=0.9, stderr=0.03), Entry(4, mean=0.8, stderr=0.04))
    'level'
    """
    tolerance = 2 * math.hypot(ours.stderr, rival.stderr)
    difference = ours.mean - rival.mean
    if not math.isfinite(difference) or not math.isfinite(tolerance):
        return "not judged"
    if abs(difference) <= tolerance * (1 + 1e-9):
        return "level"
    return "ahead" if difference > 0 else "behind"


def _counted(outcomes: Sequence[tuple[str, Outcome]]) -> str:
    parts = []
    for kind in OUTCOMES:
        titles = [names.dataset_title(dataset) for dataset, found in outcomes if found == kind]
        if titles or kind != "not judged":
            of_all = f" of {len(outcomes)}" if kind == OUTCOMES[0] else ""
            listed = f" ({'; '.join(titles)})" if titles else ""
            parts.append(f"{kind} on {len(titles)}{of_all}{listed}")
    return ", ".join(parts)
