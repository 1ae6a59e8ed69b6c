"""The door opens without PyTorch, and so does the runtime."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import splitpoint as sp

SOURCE = Path(sp.__file__).parents[1]


def said(code):
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("module", ["splitpoint", "splitpoint.runtime", "splitpoint.errors"])
def test_no_torch_is_imported_and_it_takes_less_than_half_a_second(module):
    code = f"import time; began = time.process_time(); import {module}; spent = time.process_time() - began"
    loaded, seconds = said(f"{code}; import sys; print('torch' in sys.modules, spent)")
    assert loaded == "False"
    assert float(seconds) < 0.5


def test_the_names_at_the_door_are_the_public_ones():
    assert dir(sp) == sp.__all__
    found = said(
        "import splitpoint as sp; print(*dir(sp)); from splitpoint import *; print(SplitPointRegressor.__name__)"
    )
    assert found == [*sp.__all__, "SplitPointRegressor"]


def test_a_name_comes_with_its_module_when_it_is_asked_for():
    assert said("import sys, splitpoint as sp; sp.DataError; print('torch' in sys.modules)") == ["False"]
    assert said("import sys, splitpoint as sp; sp.load; print('torch' in sys.modules)") == ["True"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'splitpoint' has no attribute 'Regressor'"):
        sp.Regressor  # noqa: B018
