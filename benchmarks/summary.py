"""The results in a few tables: agreement with the published figures, and our recipe beside its rivals.

    python benchmarks/summary.py [--write]

Reads the records in `benchmarks/results/` and prints Markdown; `--write` puts it into `docs/benchmarks.md` and
`README.md`, between the lines that mark its place. A mean is over the trials of a cell, with its standard error; a cell
with a failed trial has no mean and counts as lost. "Better on 8 of 9" compares means at full precision.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from splitpoint.bench.depth_controls import CONTROLS
from splitpoint.bench.record import Record, read_records
from splitpoint.metrics import METRICS
from splitpoint.metrics.table import DRIVING
from splitpoint.report import facts
from splitpoint.report.facts import Problem
from splitpoint.report.sections import Section, sections
from splitpoint.report.tables import Entry, Tally, decimals

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

OURS, OURS_CALIBRATED, OURS_LAYERS = "splitpoint", "splitpoint_conformal", "splitpoint_layers"
PAPER, ENSEMBLE = "splitpoint_paper", "deep_ensemble"
SOFTMAX, TEMPERATURE, ENERGY, DDU = "softmax", "temperature_scaling", "energy", "ddu"
SIDES = (("piece_plus", "piece_floor_plus"), ("piece_minus", "piece_floor_minus"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def agreement(section: Section) -> Iterator[str]:
    """How many published figures each method reproduces, and every one that it does not."""
    strict = sum(map(_within_errors, section.entries.values()))
    yield (
        f"{section.title}: {section.verdicts}. Without the allowance of half a unit of the last printed digit, which "
        f"rounding takes, it would be {strict}."
    )
    yield ""
    rows = []
    for method in section.rows:
        tally = Tally.of([entry for (row, _, _), entry in section.entries.items() if row == method])
        if tally.compared:
            counts = (tally.compared, tally.reproduced, tally.better, tally.worse, tally.failed)
            rows.append([facts.title(method), *map(str, counts)])
    yield from table(["method", "published figures", "reproduced", "better", "worse", "failed"], rows)
    others = [
        [facts.title(method), problem.title, METRICS[measure].title, entry.text(3), entry.published.text, entry.verdict]
        for (method, problem, measure), entry in section.entries.items()
        if entry.published is not None and entry.verdict not in (None, "reproduced")
    ]
    yield from table(["not reproduced", "data set", "measure", "here", "published", "verdict"], others)


def _within_errors(entry: Entry) -> bool:
    """Whether a figure with a verdict is within two standard errors of the difference, its rounding left aside."""
    if entry.published is None or entry.verdict in (None, "failed"):
        return False
    errors = [error for error in (entry.stderr, entry.published.stderr) if math.isfinite(error)]
    return abs(entry.mean - entry.published.mean) <= 2 * math.hypot(*errors)


def duels(section: Section, measure: str, rivals: Sequence[str]) -> Iterator[str]:
    """Our recipe and its rivals on every data set, and on how many ours is the better."""
    methods = (OURS, *rivals)
    rows = [[problem.title, *_cells(section, problem, measure, methods)] for problem in section.problems]
    yield f"{METRICS[measure].title} ({METRICS[measure].preference})"
    yield ""
    yield from table(["data set", *map(facts.title, methods)], rows)
    yield f"Ours is better on {_counted(section, measure, rivals)}."
    yield ""


def _cells(section: Section, problem: Problem, measure: str, methods: Sequence[str]) -> list[str]:
    found = [section.entries[method, problem, measure] for method in methods]
    return [entry.text(decimals(found)) for entry in found]


def _counted(section: Section, measure: str, rivals: Sequence[str]) -> str:
    wins = {rival: _wins(section, measure, rival) for rival in rivals}
    return ", and on ".join(f"{count} of {len(section.problems)} against {facts.title(r)}" for r, count in wins.items())


def _wins(section: Section, measure: str, rival: str) -> int:
    loss: Callable[[float], float] = METRICS[measure].loss

    def value(entry: Entry) -> float:
        return loss(entry.mean) if entry.whole else float("inf")

    pairs = [[section.entries[method, data, measure] for method in (OURS, rival)] for data in section.problems]
    return sum(value(ours) < value(other) for ours, other in pairs)


def floors(section: Section) -> Iterator[str]:
    """Coverage errors of both sides in units of what chance alone leaves perfect bounds."""
    yield "PIECE+ / PIECE- over their floor: 1 is what perfect bounds would have on so few test rows."
    yield ""
    rows, within = [], {OURS: 0, OURS_CALIBRATED: 0}
    bars = {OURS: 1.5, OURS_CALIBRATED: 1.2}
    for problem in section.problems:
        cells = []
        for method in (PAPER, *bars):
            ratios = _over_floor(section, method, problem)
            cells.append(_both(ratios))
            if method in bars:
                within[method] += all(ratio <= bars[method] for ratio in ratios)
        rows.append([problem.title, *cells])
    yield from table(["data set", *map(facts.title, (PAPER, *bars))], rows)
    said = [
        f"{facts.title(method)} is within {bar} times the floor on both sides on {within[method]} of {len(rows)} sets"
        for method, bar in bars.items()
    ]
    yield f"{'; '.join(said)}."
    yield ""
    trials, bar = max(section.trials), bars[OURS_CALIBRATED]
    perfect, split = (chance(bar, trials, factor) * len(rows) for factor in (1.0, math.sqrt(1 + 0.1 / 0.27)))
    yield (
        f"What {trials} trials leave to chance: perfect bounds would be within {bar} times the floor on both sides on "
        f"{perfect:.1f} of {len(rows)} sets on average, and conformal ones, whose 27% of the rows for calibration are "
        f"drawn at random as the 10% for testing are, on {split:.1f}."
    )
    yield ""


def _over_floor(section: Section, row: str, problem: Problem) -> list[float]:
    """Coverage errors above and below in units of what chance alone leaves."""
    return [
        section.entries[row, problem, side].mean / section.entries[row, problem, floor].mean for side, floor in SIDES
    ]


def _both(ratios: Sequence[float]) -> str:
    return "failed" if math.isnan(sum(ratios)) else " / ".join(f"{ratio:.2f}" for ratio in ratios)


def chance(bar: float, trials: int, factor: float) -> float:
    """Probability that both sides stay within `bar` times the floor when coverage errors are pure chance.

    The mean of `trials` absolute normal errors, `factor` times as large as those that perfect bounds have, over the
    expectation of one; both sides are independent. By simulation.
    """
    draws = torch.randn(100_000, trials, generator=torch.Generator().manual_seed(0)).abs().mean(1)
    return float((factor * draws * math.sqrt(math.pi / 2) <= bar).double().mean()) ** 2


def failures(records: Sequence[Record]) -> Iterator[str]:
    """How many trials there are, and every one that failed."""
    failed = [record for record in records if record.error is not None]
    yield f"{len(records):,} trials, {len(failed)} failed."
    yield ""
    for record in failed:
        where = f"{facts.title(record.method)} on {record.dataset}, {record.noise}, trial {record.trial}"
        yield f"- {where}: {record.error}"
    if failed:
        yield ""


def uci(folder: Path) -> Iterator[str]:
    """Everything about the UCI experiments."""
    records = read_records(folder)
    found = {(s.place.protocol, s.place.noise): s for s in sections(records) if s.place.suite == "uci"}
    yield from failures(records)
    if ("authors", "clean") in found:
        yield "### Agreement with the published table"
        yield ""
        yield from agreement(found["authors", "clean"])
    for (protocol, noise), section in found.items():
        if protocol == "paper":
            yield f"### Ours and its rivals, {facts.title(noise, facts.NOISES)}"
            yield ""
            yield f"{section.title}, {section.extent} in each cell."
            yield ""
            yield from duels(section, "winkler", (PAPER, ENSEMBLE))
            yield from duels(section, "spearman_total", (PAPER, ENSEMBLE))
            yield from floors(section)


def ablations(folder: Path) -> Iterator[str]:
    """What every setting of the method does to width and miss, to the ranking of errors and to coverage."""
    records = read_records(folder)
    yield from failures(records)
    for section in sections(records):
        yield f"### {facts.title(section.place.method)}: {section.place.row_kind}"
        yield ""
        yield f"{section.title}, {section.extent} in each cell; published figures: {section.verdicts}."
        yield ""
        for measure in ("winkler", "spearman_total"):
            columns = [[section.entries[row, data, measure] for row in section.rows] for data in section.problems]
            texts = [[entry.text(decimals(column)) for entry in column] for column in columns]
            head = f"{METRICS[measure].title} ({METRICS[measure].preference})"
            rows = [[row, *cells] for row, *cells in zip(section.rows, *texts, strict=True)]
            yield from table([head, *(problem.title for problem in section.problems)], rows)
        rows = [[row, *(_both(_over_floor(section, row, data)) for data in section.problems)] for row in section.rows]
        heads = [problem.title for problem in section.problems]
        yield from table(["PIECE+ / PIECE- over their floor", *heads], rows)


def placed(page: str, name: str, lines: Sequence[str]) -> str:
    """The page with the lines between its marks ``begin`` and ``end`` of that name."""
    begin, end = (f"<!-- {mark}: {name} -->" for mark in ("begin", "end"))
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"Expected {begin} and {end} in the page, but found no such lines.")
    return f"{before}{begin}\n\n{chr(10).join(lines).strip()}\n\n{end}{after}"


def cubic(folder: Path) -> Iterator[str]:
    """Agreement of the cubic experiment with its published table."""
    for section in sections(read_records(folder)):
        if section.verdicts.compared:
            yield f"### {section.title}"
            yield ""
            yield from agreement(section)


IMAGE_MEASURES = (
    ("accuracy", "accuracy"),
    ("ece", "ECE"),
    ("nll", "NLL"),
    ("auroc_error", "errors"),
    ("auroc_error_entropy", "by entropy"),
    ("auroc_adversarial", "adversarial"),
    ("auroc_adversarial_entropy", "by entropy"),
    ("auroc_ood", "out of distribution"),
    ("auroc_ood_entropy", "by entropy"),
)
"""Measures of the image tables and the heads of their columns; those without a name of their own are AUROCs."""


def images(folder: Path) -> Iterator[str]:
    """Everything about the image experiments."""
    records = read_records(folder)
    yield from failures(records)
    for section in sections(records):
        for problem in section.problems:
            trials = max(section.entries[row, problem, "ece"].trials for row in _run_on(section, problem))
            yield f"### {problem.title}, {trials} {'trial' if trials == 1 else 'trials'}"
            yield ""
            yield from _image_table(section, problem)
        protocol = facts.title(section.place.protocol, facts.PROTOCOLS)
        yield f"### Calibration and detection beside plain softmax, {protocol}"
        yield ""
        yield from beside_softmax(section)


def _run_on(section: Section, problem: Problem) -> list[str]:
    return [method for method in section.rows if (method, problem, "ece") in section.entries]


def _image_table(section: Section, problem: Problem) -> Iterator[str]:
    yield from _measures(section, problem, IMAGE_MEASURES, _run_on(section, problem))


def _measures(
    section: Section, problem: Problem, measures: Sequence[tuple[str, str]], methods: Sequence[str]
) -> Iterator[str]:
    """Some measures of some methods on one problem, empty where there is none."""
    columns = []
    for measure, _ in measures:
        found = [section.entries.get((method, problem, measure)) for method in methods]
        digits = decimals([entry for entry in found if entry is not None])
        columns.append(["" if entry is None else entry.text(digits) for entry in found])
    rows = [[facts.title(method), *cells] for method, *cells in zip(methods, *columns, strict=True)]
    yield from table(["method", *(head for _, head in measures)], rows)


DEPTH_INTERVALS = (
    ("rmse", "RMSE"),
    ("winkler", "Winkler"),
    ("winkler_conformal", "Winkler, conformalised"),
    ("picp", "PICP"),
    ("image_coverage_low", "worst tenth"),
    ("piece", "PIECE"),
    ("piece_plus", "PIECE+"),
    ("piece_minus", "PIECE-"),
    ("spearman_total", "Spearman, total"),
    ("ause", "AUSE"),
)
DEPTH_SCORES = (
    *((f"auroc_ood_{name}", f"AUROC {title}") for name, title in DRIVING.items()),
    ("auroc_ood_map", "by the map"),
    ("auroc_adversarial", "AUROC adversarial"),
    ("auroc_adversarial_map", "by the map"),
    ("spearman_sweep", "Spearman, sweep"),
    ("spearman_sweep_sds", "by SDS"),
    ("flagged_test", "flagged, test"),
)
"""Measures of the depth tables and the heads of their columns: of pixels, and of whole images."""


MODAL_MEASURES = (
    ("accuracy", "accuracy"),
    ("ece", "ECE"),
    ("auroc_error", "AUROC errors"),
    ("auroc_error_entropy", "by entropy"),
    ("auroc_ood", "out of distribution"),
    ("auroc_ood_entropy", "by entropy"),
    ("auroc_conflict", "conflict"),
    ("auroc_conflict_entropy", "by entropy"),
    ("right_blame", "right blame"),
    ("mean_aleatoric", "mean aleatoric"),
    ("mean_epistemic", "mean epistemic"),
)
"""Measures of the tables of several modalities and the heads of their columns."""


def depth(folder: Path) -> Iterator[str]:
    """Everything about the depth experiments."""
    yield from _surveys(folder, DEPTH_INTERVALS, DEPTH_SCORES)


def multimodal(folder: Path) -> Iterator[str]:
    """Everything about the experiments with several modalities."""
    yield from _surveys(folder, MODAL_MEASURES)


def _surveys(folder: Path, *tables: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Tables of measures for every problem, of those measures and methods that have any figure; controls last."""
    records = read_records(folder)
    yield from failures(records)
    for section in sections(records):
        methods = sorted(section.rows, key=lambda method: method in CONTROLS)
        for problem in section.problems:
            yield f"### {section.title}: {problem.title}"
            yield ""
            yield f"{section.extent} in each cell."
            yield ""
            for measures in tables:
                told = [name for name in measures if any((m, problem, name[0]) in section.entries for m in methods)]
                kept = [m for m in methods if any((m, problem, name) in section.entries for name, _ in told)]
                yield from _measures(section, problem, told, kept)


BESIDE_SOFTMAX = {
    "ECE": [("network", SOFTMAX, "ece"), ("temperature", TEMPERATURE, "ece"), ("ours", OURS_CALIBRATED, "ece")],
    "AUROC errors": [("entropy", SOFTMAX, "auroc_error_entropy"), ("ours", OURS_CALIBRATED, "auroc_error")],
    "AUROC adversarial": [
        ("entropy", SOFTMAX, "auroc_adversarial_entropy"),
        ("ours", OURS_CALIBRATED, "auroc_adversarial"),
    ],
    "AUROC out of distribution": [
        ("entropy", SOFTMAX, "auroc_ood_entropy"),
        ("energy", ENERGY, "auroc_ood"),
        ("DDU", DDU, "auroc_ood"),
        ("ours", OURS_CALIBRATED, "auroc_ood"),
        ("ours, several layers", OURS_LAYERS, "auroc_ood"),
    ],
}
"""Tables of our calibrated recipe beside its rivals: head of a column, method and measure."""


def beside_softmax(section: Section) -> Iterator[str]:
    """Our calibrated recipe beside temperature scaling, and its scores beside entropy, energy and DDU."""
    for title, columns in BESIDE_SOFTMAX.items():
        floor = [("chance", OURS_CALIBRATED, "ece_floor")] if title == "ECE" else []
        yield title
        yield ""
        yield from _beside(section, [*columns, *floor])
    yield from _image_counts(section)


def _beside(section: Section, columns: Sequence[tuple[str, ...]]) -> Iterator[str]:
    cells = {
        data: [section.entries[method, data, measure] for _, method, measure in columns] for data in section.problems
    }
    digits = max(map(decimals, cells.values()))
    rows = [[data.title, *(entry.text(digits) for entry in found)] for data, found in cells.items()]
    yield from table(["data set", *(head for head, _, _ in columns)], rows)


def _image_counts(section: Section) -> Iterator[str]:
    """On how many data sets our calibrated recipe is ahead, at full precision; a failed trial loses."""
    calibration = _leads(section, "ece", TEMPERATURE, "ece")
    accuracy = _leads(section, "accuracy", SOFTMAX, "accuracy")
    errors, attacked, ood = (
        _leads(section, f"auroc_{kind}", SOFTMAX, f"auroc_{kind}_entropy") for kind in ("error", "adversarial", "ood")
    )

    def counted(leads: Sequence[float], least: float = 0.0) -> str:
        return f"{sum(lead > least for lead in leads)} of {len(leads)}"

    same = sum(abs(lead) <= 0.002 for lead in accuracy)
    changes = ", ".join(f"{100 * lead:+.2f}" for lead in accuracy)
    yield f"- ECE: below that of temperature scaling on {counted(calibration)}."
    yield f"- Accuracy: within 0.2 points of the network's on {same} of {len(accuracy)} ({changes})."
    yield f"- Errors: ahead of entropy on {counted(errors)}, at most 0.01 behind on {counted(errors, -0.01)}."
    yield f"- Adversarial: ahead of entropy on {counted(attacked)}."
    yield f"- Out of distribution: ahead of entropy on {counted(ood)}."
    yield ""


def _leads(section: Section, measure: str, rival: str, rival_measure: str) -> list[float]:
    """By how much our calibrated recipe is better on every data set; minus infinity where a trial failed."""
    loss = METRICS[measure].loss
    pairs = [
        (section.entries[OURS_CALIBRATED, problem, measure], section.entries[rival, problem, rival_measure])
        for problem in section.problems
    ]
    return [loss(other.mean) - loss(ours.mean) if ours.whole and other.whole else -math.inf for ours, other in pairs]


def headline_images(folder: Path) -> Iterator[str]:
    """Our calibrated recipe beside plain softmax on image classifiers, two tables and the counts."""
    for section in sections(read_records(folder)):
        for titles in (("ECE", "AUROC errors", "AUROC adversarial"), ("AUROC out of distribution",)):
            columns = [(f"{title}: {head}", *key) for title in titles for head, *key in BESIDE_SOFTMAX[title]]
            yield from _beside(section, columns)
        yield from _image_counts(section)


def headline(folder: Path) -> Iterator[str]:
    """Our recipe and its rivals under the protocol of the paper, without added noise."""
    found = {(s.place.protocol, s.place.noise): s for s in sections(read_records(folder)) if s.place.suite == "uci"}
    section, rivals = found["paper", "clean"], (PAPER, ENSEMBLE)
    kinds = {"winkler": "Winkler", "spearman_total": "Spearman"}
    head = [f"{kind}, {who}" for kind in kinds.values() for who in ("ours", "paper's recipe", "ensemble")]
    rows = [
        [problem.title, *(cell for measure in kinds for cell in _cells(section, problem, measure, (OURS, *rivals)))]
        for problem in section.problems
    ]
    yield from table(["data set", *head], rows)
    for measure, kind in kinds.items():
        yield f"{kind} ({METRICS[measure].preference}): ours is better on {_counted(section, measure, rivals)}."


BLOCKS: dict[tuple[Path, str], Callable[[Path], Iterator[str]]] = {
    (ROOT / "docs" / "benchmarks.md", "uci"): uci,
    (ROOT / "docs" / "benchmarks.md", "uci-ablation"): ablations,
    (ROOT / "docs" / "benchmarks.md", "cubic"): cubic,
    (ROOT / "docs" / "benchmarks.md", "images"): images,
    (ROOT / "docs" / "benchmarks.md", "depth"): depth,
    (ROOT / "docs" / "benchmarks.md", "multimodal"): multimodal,
    (ROOT / "README.md", "uci"): headline,
    (ROOT / "README.md", "images"): headline_images,
}
"""What is written into a page about the records of a folder of results."""


def pages() -> dict[Path, str]:
    """Every page with its tables, from the folders of results that there are."""
    texts: dict[Path, str] = {}
    for (page, name), write in BLOCKS.items():
        text = texts.get(page, page.read_text(encoding="utf-8"))
        lines = list(write(RESULTS / name)) if (RESULTS / name).is_dir() else []
        texts[page] = placed(text, name, lines) if lines else text
    return texts


def main() -> None:
    """Print the tables, or write them into the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    if parser.parse_args().write:
        for page, text in pages().items():
            page.write_text(text, encoding="utf-8")
    else:
        for (_, name), write in BLOCKS.items():
            if (RESULTS / name).is_dir():
                print("\n".join(write(RESULTS / name)))


if __name__ == "__main__":
    main()
