"""The command: files written, the same for the same records, and one sentence where there is nothing to report."""

import pytest

from splitpoint import cli
from splitpoint.errors import DataError
from splitpoint.report import write


def test_files_and_summary(results, tmp_path, capsys):
    out = tmp_path / "new" / "report"
    assert cli.main(["report", str(results), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"index.html", "report.md"}
    assert f"Wrote {out / 'index.html'}" in said
    assert "124 trials, 1 failed." in said
    assert "All published figures: " in said


def test_same_records_same_files(results, tmp_path):
    for name in ("a", "b"):
        write(results, tmp_path / name)
    for name in ("index.html", "report.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_files_go_beside_the_records_unless_told_otherwise(tmp_path, results):
    (tmp_path / "records.jsonl").write_bytes((results / "records.jsonl").read_bytes())
    write(tmp_path)
    assert (tmp_path / "index.html").is_file()


@pytest.mark.parametrize("content", [None, "", "no record\n"], ids=["missing", "empty", "other"])
def test_nothing_to_report_is_one_sentence(tmp_path, content, capsys):
    folder = tmp_path / "runs"
    if content is not None:
        folder.mkdir()
        (folder / "records.jsonl").write_text(content)
    with pytest.raises(DataError):
        write(folder)
    assert cli.main(["report", str(folder)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    expected = f"results in {folder}" if content is None else f"records in {folder}"
    assert captured.err.startswith(f"splitpoint: Expected {expected}")
    assert captured.err.count("\n") == 1
    assert not (folder / "index.html").exists()
