"""Whether a score of ours finds more than the entropy of the softmax of the same network does, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from splitpoint.bench.networks import comes_trained
from splitpoint.bench.record import Record
from splitpoint.report import facts
from splitpoint.report.facts import Problem
from splitpoint.report.sections import Section
from splitpoint.report.tables import Entry, Table, summarised

BY_ENTROPY = {
    "auroc_error": "auroc_error_entropy",
    "auroc_adversarial": "auroc_adversarial_entropy",
    "auroc_ood": "auroc_ood_entropy",
}
"""Metrics of what a score finds, and the same of the entropy."""

OURS = ("splitpoint", "splitpoint_conformal", "splitpoint_layers")
RIVAL = "softmax"
OPENING = (
    "Against the entropy of the softmax of the same network (level: the mean difference of the trials is within two of "
    "its standard errors)"
)
SHARED = (
    "All trials there share one network and overlapping halves of the test images, so that standard errors are "
    "smaller than those between networks and images of their own."
)

Outcome = Literal["ahead", "level", "behind", "one trial", "not judged"]
COUNTED: tuple[Outcome, ...] = ("ahead", "level", "behind")


class Compared(NamedTuple):
    """How a method compares with the entropy on a problem; `difference` is that of the only trial, in words."""

    problem: Problem
    outcome: Outcome
    difference: str = ""


def captions(section: Section, table: Table) -> tuple[str, ...]:
    """A caption for each detection metric of a table: where ours is ahead of the entropy, and where it is not.

    Both scores come from the same network and images in a trial, so that trials are compared one by one, and "level"
    means a mean difference of at most two of its standard errors. One more caption names networks that come trained.
    """
    shown = list({column.metric.name: column.metric for column in table.columns}.values())
    found, repeated = [], set()
    for metric in (metric for metric in shown if metric.name in BY_ENTROPY):
        compared = {method: _compared(section, method, metric.name) for method in OURS}
        caption = _caption(compared)
        if caption:
            found.append(caption if len(shown) == 1 else f"{metric.title}. {caption}")
        repeated |= {one.problem for many in compared.values() for one in many if one.outcome in COUNTED}
    shared = [problem for problem in section.problems if problem in repeated and _trained(section, problem)]
    if shared:
        found.append(f"With a network that comes trained: {'; '.join(one.title for one in shared)}. {SHARED}")
    return tuple(found)


def _trained(section: Section, problem: Problem) -> bool:
    return any(map(comes_trained, section.groups.get((RIVAL, problem), ())))


def _caption(found: dict[str, tuple[Compared, ...]]) -> str:
    """Methods with the same outcomes share a sentence."""
    methods: dict[tuple[Compared, ...], list[str]] = {}
    for method, compared in found.items():
        if compared:
            methods.setdefault(compared, []).append(facts.title(method))
    sentences = [
        f"{listed(titles)} {'is' if len(titles) == 1 else 'are'} {_counted(compared)}."
        for compared, titles in methods.items()
    ]
    return " ".join([f"{OPENING}:", *sentences]) if sentences else ""


def listed(titles: Sequence[str]) -> str:
    """Titles with commas, and "and" before the last."""
    return " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))


def _compared(section: Section, method: str, metric: str) -> tuple[Compared, ...]:
    """How the method compares on every problem on which both were run."""
    found = []
    for problem in section.problems:
        both = ((method, metric), (RIVAL, BY_ENTROPY[metric]))
        if all((row, problem, name) in section.entries for row, name in both):
            ours, rival = (_by_trial(section.groups[row, problem], name) for row, name in both)
            difference = paired(ours, rival)
            outcome = outcome_of(difference)
            found.append(Compared(problem, outcome, _alone(difference.mean) if outcome == "one trial" else ""))
    return tuple(found)


Values = dict[tuple[int, int], float | None]
"""Values by number and seed of the trial; None where it failed."""


def _by_trial(records: Sequence[Record], metric: str) -> Values:
    return {
        (record.trial, record.seed): None if record.error is not None else record.metrics.get(metric, math.nan)
        for record in records
    }


def paired(ours: Values, rival: Values) -> Entry:
    """The difference in the trials that both have, the mean over seeds where there are several.

    >>> paired({(0, 0): 0.8, (1, 0): 0.6}, {(0, 0): 0.7, (1, 0): 0.5, (2, 0): 0.1}).text(2)
    '0.10 ± 0.00'
    """
    trials: dict[int, list[float | None]] = {}
    for trial, seed in sorted(ours.keys() & rival.keys()):
        one, other = ours[trial, seed], rival[trial, seed]
        trials.setdefault(trial, []).append(None if one is None or other is None else one - other)
    return summarised([_mean(values) for values in trials.values()])


def _mean(values: Sequence[float | None]) -> float | None:
    whole = [value for value in values if value is not None]
    return math.fsum(whole) / len(whole) if len(whole) == len(values) else None


def outcome_of(difference: Entry) -> Outcome:
    """What a difference says where higher is better.

    >>> [outcome_of(Entry(4, mean=0.1, stderr=error)) for error in (0.05, 0.04)], outcome_of(Entry(1, mean=0.1))
    (['level', 'ahead'], 'one trial')
    """
    if not difference.whole:
        return "not judged"
    if difference.trials == 1:
        return "one trial"
    if abs(difference.mean) <= 2 * difference.stderr * (1 + 1e-9) + 1e-12:
        return "level"
    return "ahead" if difference.mean > 0 else "behind"


def _alone(difference: float) -> str:
    size = f"{abs(difference):.3f}"
    if float(size) == 0:
        return "level to three decimals"
    return f"{size} {'ahead' if difference > 0 else 'behind'}"


def _counted(compared: Sequence[Compared]) -> str:
    """Numbers and titles of problems by outcome, where there is more than one trial; then those with one."""
    titles: dict[Outcome, list[str]] = {}
    for problem, outcome, _ in compared:
        titles.setdefault(outcome, []).append(problem.title)
    parts = []
    if any(kind in titles for kind in COUNTED):
        total = sum(len(titles.get(kind, ())) for kind in COUNTED)
        for kind in COUNTED:
            of_all = f" of {total}" if kind == COUNTED[0] else ""
            named = f" ({'; '.join(titles[kind])})" if kind in titles else ""
            parts.append(f"{kind} on {len(titles.get(kind, ()))}{of_all}{named}")
    parts += [
        f"{one.difference} in the only trial on {one.problem.title}" for one in compared if one.outcome == "one trial"
    ]
    if "not judged" in titles:
        parts.append(f"not judged on {len(titles['not judged'])} ({'; '.join(titles['not judged'])})")
    return ", ".join(parts)
