import math

import pytest

from splitpoint.datasets.packages import package
from splitpoint.errors import SettingsError


def test_a_package_that_is_there_is_imported():
    assert package("math", "counts", "data") is math


def test_a_missing_package_is_named_with_its_purpose_and_the_cure():
    message = (
        r"Expected the package no_such_thing, which reads tea leaves, but .*: pip install '.\[tea\]' in a checkout$"
    )
    with pytest.raises(SettingsError, match=message):
        package("no_such_thing.inner", "reads tea leaves", "tea")
