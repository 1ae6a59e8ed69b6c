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

from splitpoint.bench.record import read_records
from splitpoint.report import names
from splitpoint.report.measures import MEASURES
from splitpoint.report.sections import Section, sections
from splitpoint.report.tables import Entry, Tally, decimals

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

OURS, OURS_CONFORMAL, PAPER, ENSEMBLE = "splitpoint_default", "splitpoint_conformal", "splitpoint", "deep_ensemble"
SIDES = (("piece_plus", "piece_floor_plus"), ("piece_minus", "piece_floor_minus"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def agreement(section: Section) -> Iterator[str]:
    """How many published figures each method reproduces, and every one that it does not."""
    yield f"{section.title}: {section.verdicts}."
    yield ""
    rows = []
    for method in section.rows:
        tally = Tally.of([entry for (row, _, _), entry in section.entries.items() if row == method])
        if tally.compared:
            counts = (tally.compared, tally.reproduced, tally.better, tally.worse, tally.failed)
            rows.append([names.title(method), *map(str, counts)])
    yield from table(["method", "published figures", "reproduced", "better", "worse", "failed"], rows)
    others = [
        [names.title(method), dataset, MEASURES[measure].title, entry.text(3), entry.published.text, entry.verdict]
        for (method, dataset, measure), entry in section.entries.items()
        if entry.published is not None and entry.verdict not in (None, "reproduced")
    ]
    yield from table(["not reproduced", "data set", "measure", "here", "published", "verdict"], others)


def duels(section: Section, measure: str, rivals: Sequence[str]) -> Iterator[str]:
    """Our recipe and its rivals on every data set, and on how many ours is the better."""
    methods = (OURS, *rivals)
    rows = [[dataset, *_cells(section, dataset, measure, methods)] for dataset in section.datasets]
    yield f"{MEASURES[measure].title} ({MEASURES[measure].preference})"
    yield ""
    yield from table(["data set", *map(names.title, methods)], rows)
    yield f"Ours is better on {_counted(section, measure, rivals)}."
    yield ""


def _cells(section: Section, dataset: str, measure: str, methods: Sequence[str]) -> list[str]:
    found = [section.entries[method, dataset, measure] for method in methods]
    return [entry.text(decimals(found)) for entry in found]


def _counted(section: Section, measure: str, rivals: Sequence[str]) -> str:
    wins = {rival: _wins(section, measure, rival) for rival in rivals}
    return ", and on ".join(f"{count} of {len(section.datasets)} against {names.title(r)}" for r, count in wins.items())


def _wins(section: Section, measure: str, rival: str) -> int:
    loss: Callable[[float], float] = MEASURES[measure].loss

    def value(entry: Entry) -> float:
        return loss(entry.mean) if entry.whole else float("inf")

    pairs = [[section.entries[method, data, measure] for method in (OURS, rival)] for data in section.datasets]
    return sum(value(ours) < value(other) for ours, other in pairs)


def floors(section: Section) -> Iterator[str]:
    """Coverage errors of both sides in units of what chance alone leaves perfect bounds."""
    yield "PIECE+ / PIECE- over their floor: 1 is what perfect bounds would have on so few test rows."
    yield ""
    rows, within = [], {OURS: 0, OURS_CONFORMAL: 0}
    bars = {OURS: 1.5, OURS_CONFORMAL: 1.2}
    for dataset in section.datasets:
        cells = []
        for method in (PAPER, *bars):
            ratios = [
                section.entries[method, dataset, side].mean / section.entries[method, dataset, floor].mean
                for side, floor in SIDES
            ]
            cells.append("failed" if math.isnan(sum(ratios)) else " / ".join(f"{ratio:.2f}" for ratio in ratios))
            if method in bars:
                within[method] += all(ratio <= bars[method] for ratio in ratios)
        rows.append([dataset, *cells])
    yield from table(["data set", *map(names.title, (PAPER, *bars))], rows)
    said = [
        f"{names.title(method)} is within {bar} times the floor on both sides on {within[method]} of {len(rows)} sets"
        for method, bar in bars.items()
    ]
    yield f"{'; '.join(said)}."
    yield ""
    trials, bar = max(section.trials), bars[OURS_CONFORMAL]
    perfect, split = (chance(bar, trials, factor) * len(rows) for factor in (1.0, math.sqrt(1 + 0.1 / 0.27)))
    yield (
        f"What {trials} trials leave to chance: perfect bounds would be within {bar} times the floor on both sides on "
        f"{perfect:.1f} of {len(rows)} sets on average, and conformal ones, whose 27% of the rows for calibration are "
        f"drawn at random as the 10% for testing are, on {split:.1f}."
    )
    yield ""


def chance(bar: float, trials: int, factor: float) -> float:
    """Probability that both sides stay within `bar` times the floor when coverage errors are pure chance.

    The mean of `trials` absolute normal errors, `factor` times as large as those that perfect bounds have, over the
    expectation of one; both sides are independent. By simulation.
    """
    draws = torch.randn(100_000, trials, generator=torch.Generator().manual_seed(0)).abs().mean(1)
    return float((factor * draws * math.sqrt(math.pi / 2) <= bar).double().mean()) ** 2


def uci(folder: Path) -> Iterator[str]:
    """Everything about the UCI experiments."""
    records = read_records(folder)
    found = {(s.place.protocol, s.place.noise): s for s in sections(records) if s.place.suite == "uci"}
    failed = [record for record in records if record.error is not None]
    yield f"{len(records):,} trials, {len(failed)} failed."
    yield ""
    for record in failed:
        where = f"{names.title(record.method)} on {record.dataset}, {record.noise}, trial {record.trial}"
        yield f"- {where}: {record.error}"
    if failed:
        yield ""
    if ("authors", "clean") in found:
        yield "### Agreement with the published table"
        yield ""
        yield from agreement(found["authors", "clean"])
    for (protocol, noise), section in found.items():
        if protocol == "paper":
            yield f"### Ours and its rivals, {names.title(noise, names.NOISES)}"
            yield ""
            yield f"{section.title}, {section.extent} in each cell."
            yield ""
            yield from duels(section, "winkler", (PAPER, ENSEMBLE))
            yield from duels(section, "spearman_total", (PAPER, ENSEMBLE))
            yield from floors(section)


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


def headline(folder: Path) -> Iterator[str]:
    """Our recipe and its rivals under the protocol of the paper, without added noise."""
    found = {(s.place.protocol, s.place.noise): s for s in sections(read_records(folder)) if s.place.suite == "uci"}
    section, rivals = found["paper", "clean"], (PAPER, ENSEMBLE)
    kinds = {"winkler": "Winkler", "spearman_total": "Spearman"}
    head = [f"{kind}, {who}" for kind in kinds.values() for who in ("ours", "paper's recipe", "ensemble")]
    rows = [
        [dataset, *(cell for measure in kinds for cell in _cells(section, dataset, measure, (OURS, *rivals)))]
        for dataset in section.datasets
    ]
    yield from table(["data set", *head], rows)
    for measure, kind in kinds.items():
        yield f"{kind} ({MEASURES[measure].preference}): ours is better on {_counted(section, measure, rivals)}."


BLOCKS: dict[tuple[Path, str], Callable[[Path], Iterator[str]]] = {
    (ROOT / "docs" / "benchmarks.md", "uci"): uci,
    (ROOT / "docs" / "benchmarks.md", "cubic"): cubic,
    (ROOT / "README.md", "uci"): headline,
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
            print("\n".join(write(RESULTS / name)))


if __name__ == "__main__":
    main()
