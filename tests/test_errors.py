"""The small error hierarchy: one root, each kind also a ValueError."""

import inspect
import pickle

import pytest

from splitpoint import errors

ROOTS = (errors.SplitPointError, errors.SplitPointWarning)
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind not in ROOTS]


def test_the_kinds_of_the_design_exist():
    assert {"SettingsError", "ShapeError", "DataError", "LayerError"} <= {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_caught_by_the_root_and_as_a_value_error(kind):
    for caught in (errors.SplitPointError, ValueError, kind):
        with pytest.raises(caught, match=r"^what to do$"):
            raise kind("what to do")


def test_the_root_is_no_value_error_itself():
    assert not issubclass(errors.SplitPointError, ValueError)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_do_not_catch_each_other(kind):
    assert not any(issubclass(other, kind) for other in KINDS if other is not kind)


@pytest.mark.parametrize("kind", [errors.SplitPointError, *KINDS])
def test_each_kind_says_what_it_is_for_and_survives_a_worker_process(kind):
    assert kind.__doc__.strip().endswith(".")
    copy = pickle.loads(pickle.dumps(kind("message")))
    assert type(copy) is kind
    assert str(copy) == "message"
