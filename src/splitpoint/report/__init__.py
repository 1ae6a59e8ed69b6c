"""Reports behind ``splitpoint report``: tables, figures and a page, a pure function of the records of a benchmark."""

from __future__ import annotations

from pathlib import Path

from splitpoint.bench.artefacts import Artefact
from splitpoint.bench.modal_artefacts import SpoiltDrawing
from splitpoint.bench.record import RECORDS, Journal, read_records
from splitpoint.files import write_text
from splitpoint.report import gallery, modal
from splitpoint.report.findings import as_markdown
from splitpoint.report.page import page
from splitpoint.report.sections import sections
from splitpoint.report.text import count, markdown, summary

__all__ = ["write"]

MOST_NAMED = 10
"""Numbers of damaged lines that are named."""


def write(folder: Path, out: Path | None = None) -> str:
    """Write ``index.html`` and ``report.md`` of the records in `folder` to `out` (default: the same folder).

    Returns where they are and a short summary. The same records give the same files. Lines that are damaged are left
    out, and all three say which.
    """
    records = read_records(folder)
    found, extra = sections(records), modal.findings(records, SpoiltDrawing.read(folder))
    notes = left_out(folder)
    out = folder if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    documents = {
        "index.html": page(records, found, gallery.read(folder), extra, notes),
        "report.md": markdown(records, found, as_markdown(extra), notes),
    }
    for name, text in documents.items():
        write_text(out / name, text)
    return "\n".join([*(f"Wrote {out / name}" for name in documents), *notes, summary(records, found)])


def left_out(folder: Path) -> list[str]:
    """Which lines of the files of a folder are damaged, in a sentence for each file that has some."""
    kinds: list[type[Artefact]] = [*gallery.ABOVE, *gallery.BELOW, SpoiltDrawing]
    read = {RECORDS: Journal(folder).lines().skipped} | {kind.file: kind.lines(folder).skipped for kind in kinds}
    return [
        f"Left out as damaged: {count(len(lines), 'line')} of {name} ({_some(lines)})"
        + (", with all trials of their stacks." if name == RECORDS else ".")
        for name, lines in read.items()
        if lines
    ]


def _some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_NAMED]))
    return shown if len(numbers) <= MOST_NAMED else f"{shown}, ..."
