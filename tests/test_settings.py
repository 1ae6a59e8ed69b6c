"""Settings are of the kinds that their annotations say, and plain values of Python."""

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import pytest

from splitpoint.baselines import METHODS
from splitpoint.errors import SettingsError
from splitpoint.settings import _annotations, settle, shown


@dataclass(frozen=True)
class Some:
    flag: bool = True
    count: int | None = None
    size: float = 1.0
    kind: Literal["a", "b"] = "a"
    parts: float | tuple[float, ...] = ()
    other: Any = None

    def __post_init__(self) -> None:
        settle(self)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"flag": np.bool_(False)}, False),
        ({"count": np.int32(3)}, 3),
        ({"count": None}, None),
        ({"size": 2}, 2),
        ({"size": np.float32(0.5)}, 0.5),
        ({"parts": [1, np.float64(0.5)]}, (1, 0.5)),
        ({"parts": 0.5}, 0.5),
        ({"kind": "b"}, "b"),
        ({"other": {"a": 1}}, {"a": 1}),
    ],
    ids=str,
)
def test_what_fits_is_kept_as_a_plain_value(given, kept):
    ((name, _),) = given.items()
    found = getattr(Some(**given), name)
    assert found == kept
    assert type(found) is type(kept)
    json.dumps(found)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"flag": 1}, r"flag to be True or False, but got 1;"),
        ({"flag": "no"}, r"flag to be True or False, but got 'no';"),
        ({"count": True}, r"count to be a whole number or None, but got True;"),
        ({"count": 2.0}, r"count to be a whole number or None, but got 2\.0;"),
        ({"size": float("nan")}, r"size to be a finite number, but got nan;"),
        ({"size": float("-inf")}, r"size to be a finite number, but got -inf;"),
        ({"size": 10**400}, r"size to be a finite number, but got 1000"),
        ({"size": None}, r"size to be a finite number, but got None;"),
        ({"kind": "c"}, r"kind to be 'a' or 'b', but got 'c';"),
        ({"parts": (0.5, "x")}, r"parts to be a finite number or a tuple of finite numbers, but got \(0\.5, 'x'\);"),
        ({"parts": np.array([0.5])}, r"parts to be .*, but got array\(\[0\.5\]\);"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_with_what_would(given, words):
    with pytest.raises(SettingsError, match=f"^Expected {words}.*change it or leave it out\\.$"):
        Some(**given)


@pytest.mark.parametrize("name", METHODS)
def test_every_plain_setting_of_every_method_is_checked(name):
    """All but layers, mappings and functions, which are told by what reads them."""
    method = METHODS[name]()
    left = {field.name for field in fields(method)} - _annotations(type(method)).keys()
    assert left <= {"layer", "retrain", "branches", "views", "settings"}


def test_a_value_is_shown_on_one_line():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    assert "\n" not in shown(np.zeros((9, 9)))
    assert len(shown("a" * 10_000)) < 100
    assert "Rude" in shown(Rude())
