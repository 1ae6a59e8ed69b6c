"""Whether a score tells sets apart better than the colours of their images do, in words."""

from __future__ import annotations

from splitpoint.bench.depth_controls import STATISTICS
from splitpoint.report import facts
from splitpoint.report.detection import listed
from splitpoint.report.sections import Section
from splitpoint.report.tables import Table

DETECTION = "auroc_ood"


def captions(section: Section, table: Table) -> tuple[str, ...]:
    """For each problem of a table of detection, which methods are above the best statistic of the image alone.

    Separation by the image is separation one way or the other: an AUROC of 0.1 counts as 0.9.
    """
    if DETECTION not in {column.metric.name for column in table.columns}:
        return ()
    found = []
    for problem in section.problems:
        means = {
            row: section.entries[row, problem, DETECTION].mean
            for row in section.rows
            if (row, problem, DETECTION) in section.entries and section.entries[row, problem, DETECTION].whole
        }
        known = {row: max(mean, 1 - mean) for row, mean in means.items() if row in STATISTICS}
        if not known:
            continue
        best = max(known, key=lambda row: known[row])
        above = [facts.title(row) for row, mean in means.items() if row not in STATISTICS and mean > known[best]]
        where = f" on {problem.title}" if len(section.problems) > 1 else ""
        found.append(
            f"Out of distribution{where}, {facts.title(best)} tells the sets apart with an AUROC of {known[best]:.3f}, "
            "without any network. A method whose AUROC is below that has proved nothing with it: the sets differ in "
            f"their colours. Above it: {listed(above) if above else 'none'}."
        )
    return tuple(found)
