"""What was run, in words."""

from dataclasses import replace

from splitpoint.report.overview import overview


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
