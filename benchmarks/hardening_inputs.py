"""Bad inputs: the corpus of the tests, trainings that diverge, and files of data sets changed at random.

Every case of the corpus must end in one sentence of the library, or in the right answer where the input is legitimate;
every changed file in an array or in one sentence, and never in anything that runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hardening_figures import Figure

TESTS = Path(__file__).resolve().parents[1] / "tests"
FILES = 20_000


def figures(quick: bool) -> list[Figure]:
    """The corpus, and files changed at random; a tenth of them with `quick`."""
    sys.path.insert(0, str(TESTS))
    import hostile_files
    import hostile_inputs

    step = 10 if quick else 1
    found = []
    parts = (
        ("bad settings, data and calls end in one sentence", hostile_inputs.PARTS),
        ("bad files and addresses end in one sentence", hostile_files.FILE_PARTS),
    )
    for promise, makers in parts:
        cases = [case for maker in makers for case in maker()][::step]
        wrong = {case.name: text for case in cases if (text := hostile_inputs.complaint(case))}
        worst = next((f"{name}: {text}" for name, text in wrong.items()), "none")
        found.append(Figure(promise, len(cases) - len(wrong), len(cases), worst))
    count = FILES // step
    good, raised = hostile_files.fuzzed(count)
    found.append(Figure("files changed at random are read or refused", good, count, next(iter(raised), "none")))
    return found
