"""How scores change with noise, and whether what the paper claims of them holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from splitpoint.bench.record import Record
from splitpoint.report.tables import Entry, summarised

Kind = Literal["aleatoric", "epistemic"]
KINDS: tuple[Kind, ...] = ("aleatoric", "epistemic")
Values = dict[tuple[int, int], float | None]
"""Values by trial and seed; None where it failed."""


class Experiment(NamedTuple):
    """Records of one data set and protocol, by network, condition, method and variant."""

    groups: Mapping[tuple[str, str, str, str], Sequence[Record]]

    @staticmethod
    def of(records: Sequence[Record]) -> Experiment:
        """Group them."""
        found: dict[tuple[str, str, str, str], list[Record]] = {}
        for record in records:
            found.setdefault((record.network, record.noise, record.method, record.variant), []).append(record)
        return Experiment(found)

    def values(self, network: str, condition: str, method: str, metric: str, variant: str = "") -> Values:
        """The values of a metric in all trials; NaN where there is none."""
        return {
            (record.trial, record.seed): None if record.error is not None else record.metrics.get(metric, math.nan)
            for record in self.groups.get((network, condition, method, variant), ())
        }

    def entry(self, network: str, condition: str, method: str, metric: str, variant: str = "") -> Entry | None:
        """Mean and standard error over the trials; None where the metric is in none of them."""
        found = list(self.values(network, condition, method, metric, variant).values())
        known = [value for value in found if value is not None and not math.isnan(value)]
        return summarised(found) if known or (found and None in found) else None

    def changes(self, network: str, condition: str, method: str, kind: Kind) -> list[float | None]:
        """Change of a mean score against clean rows in percent, trial by trial.

        Empty where a score is not positive on clean rows, as log densities may be: it has no percentage.
        """
        clean, noisy = (self.values(network, noise, method, f"mean_{kind}") for noise in ("clean", condition))
        found: list[float | None] = []
        for trial in sorted(clean.keys() & noisy.keys()):
            before, after = clean[trial], noisy[trial]
            if before is None or after is None:
                found.append(None)
            elif not before > 0:
                return []
            else:
                found.append(100 * (after / before - 1))
        return found


@dataclass(frozen=True)
class Claim:
    """Something that the paper says: a score rises under some conditions."""

    text: str
    kind: Kind
    conditions: tuple[str, ...]


CLAIMS = (
    Claim("aleatoric uncertainty rises with label and sample noise", "aleatoric", ("label", "sample")),
    Claim("epistemic uncertainty rises when diversity is lost", "epistemic", ("diversity",)),
    Claim("epistemic uncertainty rises with label noise", "epistemic", ("label",)),
)

Verdict = Literal["holds", "open", "does not hold", "one trial", "not judged"]


def verdict(changes: Sequence[float | None]) -> Verdict:
    """What the changes of all trials say of a rise.

    "holds": the mean is more than two of its standard errors above 0; "does not hold": as far below; "open" between.

    >>> verdict([10.0, 12.0, 11.0]), verdict([-10.0, -12.0, -11.0]), verdict([-5.0, 6.0, 1.0]), verdict([3.0])
    ('holds', 'does not hold', 'open', 'one trial')
    """
    found = summarised(changes)
    if not found.whole:
        return "not judged"
    if found.trials == 1:
        return "one trial"
    if abs(found.mean) <= 2 * found.stderr:
        return "open"
    return "holds" if found.mean > 0 else "does not hold"
