"""The tables in the documentation are those of the committed records, and their counts are right."""

import importlib.util
from pathlib import Path

import pytest

from splitpoint.report.sections import sections

ROOT = Path(__file__).parents[1]
METHODS = {"splitpoint_default": (2.0, 3.0), "splitpoint": (4.0, 1.0), "deep_ensemble": (1.0, 5.0)}


@pytest.fixture(scope="module")
def summary():
    spec = importlib.util.spec_from_file_location("summary", ROOT / "benchmarks" / "summary.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_documented_tables_are_those_of_the_records(summary):
    assert any(summary.RESULTS.iterdir())
    for page, text in summary.pages().items():
        assert page.read_text(encoding="utf-8") == text, "run: python benchmarks/summary.py --write"


def test_a_duel_counts_the_data_sets_where_ours_is_better(summary, cell):
    records = [
        record
        for method, scores in METHODS.items()
        for dataset, score in zip(("boston", "yacht"), scores, strict=True)
        for record in cell(dataset, method, {"winkler": [score, score + 1]}, protocol="paper")
    ]
    lines = list(summary.duels(sections(records)[0], "winkler", ("splitpoint", "deep_ensemble")))
    assert "| boston | 2.50 ± 0.50 | 4.50 ± 0.50 | 1.50 ± 0.50 |" in lines
    assert lines[-2] == ("Ours is better on 1 of 2 against Split-point (paper), and on 1 of 2 against Deep ensemble.")


def test_a_failed_trial_loses_the_duel(summary, cell):
    records = [
        *cell("boston", "splitpoint_default", {"winkler": [1.0, 1.0]}, protocol="paper", errors=(1,)),
        *cell("boston", "splitpoint", {"winkler": [9.0, 9.0]}, protocol="paper"),
    ]
    lines = list(summary.duels(sections(records)[0], "winkler", ("splitpoint",)))
    assert lines[-2] == "Ours is better on 0 of 1 against Split-point (paper)."


def test_lines_replace_what_was_between_the_marks(summary):
    page = "a\n<!-- begin: x -->\nold\n<!-- end: x -->\nb\n"
    assert summary.placed(page, "x", ["new"]) == "a\n<!-- begin: x -->\n\nnew\n\n<!-- end: x -->\nb\n"
    with pytest.raises(SystemExit, match="no such lines"):
        summary.placed("a", "x", [])


def test_chance_of_perfect_bounds_is_that_of_the_normal_law(summary):
    # one trial: P(|Z| sqrt(pi / 2) <= 1.2) = P(|Z| <= 0.9575) = 0.6617, for each of two sides
    assert summary.chance(1.2, 1, 1.0) == pytest.approx(0.6617**2, abs=0.005)
    # a hundred trials: the mean has deviation 0.0756, so that 1.2 lies 2.65 deviations above 1, and 5.3 below 2
    assert summary.chance(1.2, 100, 1.0) == pytest.approx(0.996**2, abs=0.005)
    assert summary.chance(1.2, 100, 2.0) == pytest.approx(0.0, abs=1e-6)
