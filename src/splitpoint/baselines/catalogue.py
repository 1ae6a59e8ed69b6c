"""All methods as a table for people."""

from __future__ import annotations

import textwrap

from splitpoint.baselines import METHODS

HEADER = ("id", "task", "post-hoc", "passes", "needs", "reference")


def catalogue() -> str:
    """One line for each method: what it does, what it needs and costs, and who defined it."""
    rows = [HEADER]
    for name, method in METHODS.items():
        about = method.about
        task = "both" if len(about.tasks) > 1 else about.tasks[0]
        post_hoc = "yes" if about.post_hoc else "no"
        rows.append((name, task, post_hoc, about.passes, about.needs, about.reference))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]]) + "\n\n" + textwrap.fill(NOTE, 110)


NOTE = (
    "Passes are forward passes of a network for one prediction (L levels, T masks, M members). "
    "Post-hoc methods take a trained model and leave it as "
    "it is, or train one first when they get a factory (a function that builds an untrained network); the others "
    "train networks of their own on the backbone that a factory builds."
)
