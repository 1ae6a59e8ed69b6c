"""Predictions and records are those that are stored: to the last bit on the machine they were made on, else closely."""

import numpy as np
import pytest

import splitpoint as sp
from golden.make import CASES, COMMANDS, FOLDER, OLD_FILES, REFUSED, loaded, predicted, read, recorded, summary
from problems import problem

CLOSE = 1e-2
"""Relative to a number, or to the largest one of its field: other processors round otherwise, which a best epoch or a
score that is a small difference of large numbers (SDS) can turn into half a per cent."""

SMOOTH = {"rmse", "mpiw", "crps", "winkler", "nll", "brier"}
"""Metrics that hardly change with the last bits of a prediction; shares and ranks of a few rows jump."""

PREDICTIONS, SAME_MACHINE = read("predictions")
RECORDS, _ = read("records")
FILES, _ = read("format1")


def assert_close(found, expected, where, share=CLOSE):
    largest = max((abs(number) for number in expected if np.isfinite(number)), default=0.0)
    np.testing.assert_allclose(found, expected, rtol=share, atol=share * largest, err_msg=where)


def test_every_case_is_stored_and_nothing_else():
    assert PREDICTIONS.keys() == CASES.keys()
    assert RECORDS.keys() == set(COMMANDS)
    assert FILES.keys() == OLD_FILES.keys()


def assert_stored(found, expected, name):
    assert found.keys() == expected.keys()
    for field, (digest, numbers) in expected.items():
        assert_close(found[field][1], numbers, f"{name}: {field}")
        assert digest == found[field][0] or not SAME_MACHINE, f"{field} differs in its last bits"


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_those_that_are_stored(name):
    assert_stored(summary(predicted(CASES[name])), PREDICTIONS[name], name)


@pytest.mark.parametrize("name", OLD_FILES)
def test_files_of_format_1_predict_as_they_did(name):
    assert_stored(summary(loaded(name)), FILES[name], name)


def test_an_old_file_whose_score_is_no_longer_in_use_is_refused():
    own = problem("classes")
    with pytest.raises(sp.StorageError, match=r"has format 1, whose support score .*; fit it again and save it"):
        sp.load(FOLDER / "format1" / f"{REFUSED}.safetensors", own.factory)


@pytest.mark.parametrize("command", COMMANDS, ids=[command.split()[1] for command in COMMANDS])
def test_records_are_those_that_are_stored(command):
    found, expected = recorded(command), RECORDS[command]
    assert found.keys() == expected.keys()
    for place, metrics in expected.items():
        assert found[place].keys() == metrics.keys(), place
        for name, value in metrics.items():
            if SAME_MACHINE:
                assert found[place][name] == value or np.isnan([found[place][name], value]).all(), f"{place}: {name}"
            elif name in SMOOTH:
                assert_close([found[place][name]], [value], f"{place}: {name}", share=10 * CLOSE)
