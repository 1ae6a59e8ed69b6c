"""Settings are checked by type: a dataclass takes what its annotations say, and keeps it as plain Python values."""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from splitpoint.errors import SettingsError

Unbounded = Annotated[float, "infinity too"]
"""A number that may be infinite."""

_WORDS: dict[Any, tuple[str, str]] = {
    Unbounded: ("a number", "numbers"),
    bool: ("True or False", "values of True or False"),
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    str: ("a text", "texts"),
    types.NoneType: ("None", "values of None"),
}
"""How kinds of settings are called, one of them and several."""


class _Other:
    """Stands for a value of another kind."""


def settle(settings: Any) -> None:
    """Refuse settings that are not of the kinds that their annotations say; call it first in ``__post_init__``.

    Whole numbers serve as numbers, True and False do not, nor do NaN and infinity. NumPy's numbers become Python's, and
    lists tuples, so that settings compare, hash and are saved alike. Annotations of functions, layers and collections
    that are no tuples are left to what reads them.
    """
    kind: Any = type(settings)
    for name, wanted in _annotations(kind).items():
        given = getattr(settings, name)
        kept = _fitted(given, wanted)
        if kept is _Other:
            raise SettingsError(
                f"Expected {name} to be {_described(wanted)}, but got {shown(given)}; change it or leave it out."
            )
        object.__setattr__(settings, name, kept)


def shown(value: object) -> str:
    """A value in a few words on one line.

    >>> shown([0.5] * 100), shown("no")
    ('[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ...]', "'no'")
    """
    try:
        return " ".join(reprlib.repr(value).split())
    except Exception:  # whatever the `__repr__` of another's class raises
        return f"a {type(value).__name__}"


@functools.cache
def _annotations(kind: Any) -> dict[str, Any]:
    """The annotations of the fields of a dataclass that are made of plain kinds, by name."""
    found = {field.name: _annotation(kind, field.name) for field in fields(kind)}
    return {name: wanted for name, wanted in found.items() if _plain(wanted)}


def _annotation(kind: type, name: str) -> Any:
    """What a field is annotated with; Any where that names what its module only knows when types are checked."""
    owner = next(own for own in kind.__mro__ if name in inspect.get_annotations(own))
    one = types.SimpleNamespace(__annotations__={name: inspect.get_annotations(owner)[name]})
    try:
        return get_type_hints(one, vars(sys.modules[owner.__module__]), include_extras=True)[name]
    except NameError:
        return Any


def _plain(wanted: Any) -> bool:
    """Whether values can be told to be of this kind by looking at them."""
    origin = get_origin(wanted)
    if origin is Literal or wanted == Unbounded:
        return True
    if origin in (Union, types.UnionType):
        return all(map(_plain, get_args(wanted)))
    if origin is tuple:
        return len(get_args(wanted)) == 2 and get_args(wanted)[1] is Ellipsis and _plain(get_args(wanted)[0])
    kind = origin or wanted
    return isinstance(kind, type) and kind.__module__ not in (typing.__name__, "collections.abc")


def _fitted(given: Any, wanted: Any) -> Any:
    """The value as a plain one of the wanted kind, or `_Other`."""
    if wanted == Unbounded:
        return math.inf if isinstance(given, float) and given == math.inf else _fitted(given, float)
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return next((found for part in get_args(wanted) if (found := _fitted(given, part)) is not _Other), _Other)
    if origin is Literal:
        same = (choice for choice in get_args(wanted) if type(choice) is type(given) and choice == given)
        return next(same, _Other)
    if origin is tuple:
        if not isinstance(given, tuple | list):
            return _Other
        parts = [_fitted(part, get_args(wanted)[0]) for part in given]
        return _Other if _Other in parts else tuple(parts)
    if wanted is bool:
        return bool(given) if isinstance(given, bool | np.bool_) else _Other
    if wanted in (int, float):
        return _number(given, wanted)
    return given if isinstance(given, origin or wanted) else _Other


def _number(given: Any, wanted: type) -> Any:
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        return int(given) if wanted is int or abs(int(given)) < 2**1000 else _Other
    if wanted is float and isinstance(given, float | np.floating) and math.isfinite(given):
        return float(given)
    return _Other


def _described(wanted: Any) -> str:
    """A kind in words."""
    options = [part for part in _options(wanted) if part is not types.NoneType]
    options += [types.NoneType] if types.NoneType in _options(wanted) else []
    words = [_words(option) for option in options]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _options(wanted: Any) -> list[Any]:
    """What a kind is made of, each one of several choices by itself."""
    if get_origin(wanted) in (Union, types.UnionType):
        return [option for part in get_args(wanted) for option in _options(part)]
    if get_origin(wanted) is Literal:
        return [Literal[choice] for choice in get_args(wanted)]
    return [wanted]


def _words(wanted: Any) -> str:
    if get_origin(wanted) is Literal:
        return repr(get_args(wanted)[0])
    if get_origin(wanted) is tuple:
        return f"a tuple of {_several(_options(get_args(wanted)[0]))}"
    kind = wanted if wanted in _WORDS else get_origin(wanted) or wanted
    return _WORDS[kind][0] if kind in _WORDS else f"a {kind.__name__}"


def _several(wanted: Iterable[Any]) -> str:
    return " or ".join(_WORDS[kind][1] if kind in _WORDS else str(kind) for kind in wanted)
