"""The report in words: what was run, and Markdown tables that render, with marks and verdicts in text."""

from dataclasses import replace

from splitpoint.bench.record import read_records
from splitpoint.report.sections import sections
from splitpoint.report.text import markdown, overview, rows_as_markdown

# What was run


def test_settings_show_their_values_and_leave_groups_to_the_records(cell):
    first, second = cell("boston", "gaussian", {"rmse": [1.0, 2.0]})
    records = [
        replace(first, settings={"epochs": 400, "heads": {"folds": 5}}),
        replace(second, settings={"epochs": 10, "batch_size": 64}),
    ]
    assert dict(overview(records))["Settings"] == "batch size 64; epochs 10, 400"


def test_failed_trials_are_counted(cell):
    records = cell("boston", "gaussian", {"rmse": [1.0, 2.0, 3.0]}, errors=(1,))
    assert dict(overview(records))["Trials"] == "3 (1 failed)"


# Markdown


def test_tables_have_equally_many_cells_in_every_row(results):
    records = read_records(results)
    blocks = markdown(records, sections(records)).split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("|")]
    assert len(tables) > 10
    assert all(len({line.count("|") for line in table}) == 1 for table in tables)


def test_cells_by_hand(cell):
    records = cell("boston", "mc_dropout", {"rmse": [3.9, 4.1]})
    records += cell("boston", "splitpoint_paper", {"rmse": [5.0, 5.0]})
    records += cell("boston", "own_method", {"rmse": [5.0, 5.0]}, errors=(0,))
    text = markdown(records, sections(records))
    assert "| MC dropout | **4.00 ± 0.10** (= 3.99 ± 0.17) |" in text
    assert "| Split-point (paper) | _5.00 ± 0.00_ (▼ 3.69 ± 0.15) |" in text
    assert "| own method | 1 of 2 failed |" in text
    assert "- own method on boston, trial 0: loss is <not> finite" in text
    assert "2 trials in each cell. Published figures: 1 of 2 reproduced (50%); 0 better, 1 worse." in text


def test_bars_in_names_do_not_break_a_table():
    assert rows_as_markdown([["a|b", "c"], ["1", "2"]]) == "| a\\|b | c |\n| :-- | --: |\n| 1 | 2 |"
