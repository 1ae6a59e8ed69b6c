"""What a fit says about itself: one warning for each check that failed, from where the user called."""

import warnings

import pytest

import splitpoint as sp
from splitpoint.checks import warn_of

FINE = sp.Check("coverage", 0.9, "ok", "as it should be")
FAILED = sp.Check("memorised base", 0.42, "warn", "training residuals are too small; pass calibration data")
UNKNOWN = sp.Check("duplicates", float("nan"), "unknown", "rows cannot be read twice")


def test_only_failures_warn_and_each_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of([FINE, FAILED, UNKNOWN, FAILED])
    assert [str(one.message) for one in caught] == [f"{FAILED.name}: {FAILED.advice}"] * 2
    assert {one.category for one in caught} == {sp.SplitPointWarning}
    assert {one.filename for one in caught} == {__file__}


def test_the_category_can_be_silenced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.SplitPointWarning)
        warn_of([FAILED])


def test_a_check_is_one_line():
    assert str(FAILED) == "warn    memorised base (0.42): training residuals are too small; pass calibration data"


def test_a_warning_is_an_error_where_it_is_asked_for():
    with warnings.catch_warnings():
        warnings.simplefilter("error", sp.SplitPointWarning)
        with pytest.raises(sp.SplitPointWarning, match="memorised base"):
            warn_of([FAILED])
