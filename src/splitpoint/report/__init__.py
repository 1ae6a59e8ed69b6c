"""Reports behind ``splitpoint report``: tables, figures and a page, a pure function of the records of a benchmark."""

from __future__ import annotations

from pathlib import Path

from splitpoint.bench.modal_artefacts import SpoiltDrawing
from splitpoint.bench.record import read_records
from splitpoint.files import write_text
from splitpoint.report import gallery, modal
from splitpoint.report.findings import as_markdown
from splitpoint.report.page import page
from splitpoint.report.sections import sections
from splitpoint.report.text import markdown, summary

__all__ = ["write"]


def write(folder: Path, out: Path | None = None) -> str:
    """Write ``index.html`` and ``report.md`` of the records in `folder` to `out` (default: the same folder).

    Returns where they are and a short summary. The same records give the same files.
    """
    records = read_records(folder)
    found, extra = sections(records), modal.findings(records, SpoiltDrawing.read(folder))
    out = folder if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    documents = {
        "index.html": page(records, found, gallery.read(folder), extra),
        "report.md": markdown(records, found, as_markdown(extra)),
    }
    for name, text in documents.items():
        write_text(out / name, text)
    return "\n".join([*(f"Wrote {out / name}" for name in documents), summary(records, found)])
