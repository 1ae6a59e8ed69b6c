"""CIFAR's pickled batches, read without unpickling: the commands of a pickle are walked, and nothing is constructed.

A batch is a dict of text keys with `data`, an array of bytes (n, 3072) in rows, and lists of as many numbers. What
other commands, functions or classes than such a file needs would do is never done: they are refused by name. Calls of
NumPy's functions stand as what was asked for, and the bytes of the array are taken from the file as they are.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

PIXELS = 3 * 32 * 32

LARGEST = 2**30
"""Bytes of a file, at most; the largest published one has 155 million."""

_FEWEST_COMMANDS, _BYTES_A_COMMAND = 1_000, 256
"""A batch takes two or three commands for every row of 3072 bytes: a file with many more is none."""

_LONGEST_KEY = 100
"""Characters of a key or name."""

_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_RECONSTRUCT = {(module, "_reconstruct") for module in _MODULES}
_FROM_BUFFER = {("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer")}
_NDARRAY, _DTYPE, _ENCODE = ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")
_KNOWN = _RECONSTRUCT | _FROM_BUFFER | {_NDARRAY, _DTYPE, _ENCODE}
"""Functions and classes by module and name, as pickled arrays of old and new versions of NumPy call them."""

_MARK = object()
"""Lies on the stack where a command has put a mark."""


class NotABatchError(Exception):
    """The file is no batch, for the reason that the message gives."""


@dataclass(frozen=True)
class _Name:
    """A function or class that the file names; it is never looked up."""

    name: tuple[str, str]


@dataclass
class _Call:
    """What the file would have called, and the state it would have given the result; nothing is called."""

    name: tuple[str, str]
    given: tuple[Any, ...]
    state: Any = None


_Stack: TypeAlias = "list[Any]"


def read_batch(content: bytes, labels: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels (n, 3072) and the numbers (n,) under the key `labels` of a pickled batch.

    A `NotABatchError` says what else the file is. Time and memory are bounded by the size of the file.
    """
    if len(content) > LARGEST:
        raise NotABatchError(f"it has {len(content):,} bytes")
    try:
        table = _walked(content)
        if not isinstance(table, dict) or not {"data", labels} <= table.keys():
            raise NotABatchError(f"it has no 'data' and '{labels}'")
        return _pixels(table["data"]), _numbers(table[labels], labels)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise NotABatchError(f"its commands make no sense ({type(error).__name__})") from error


def _walked(content: bytes) -> Any:
    """What the pickle describes, with calls as what was asked for."""
    stack: _Stack = []
    memo: dict[int, Any] = {}
    left = _FEWEST_COMMANDS + len(content) // _BYTES_A_COMMAND
    commands: Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]] = pickletools.genops(io.BytesIO(content))
    for command, argument, _ in commands:
        left -= 1
        if left < 0:
            raise NotABatchError("it has too many commands")
        name = command.name
        if name in _CONSTANTS:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            module, _, function = argument.partition(" ")
            stack.append(_named(module, function))
        elif name in _COMMANDS:
            _COMMANDS[name](stack)
        elif name == "STOP":
            return stack.pop()
        else:
            raise NotABatchError(f"it has a command {name}, which a batch has no use for")
    raise NotABatchError("it ends too early")


def _named(module: Any, function: Any) -> _Name:
    if (module, function) not in _KNOWN:
        raise NotABatchError(f"it asks for {module}.{function}, which is no part of an array")
    return _Name((module, function))


def _since_mark(stack: _Stack) -> list[Any]:
    """What lies above the last mark, which goes with it."""
    place = len(stack) - 1
    while stack[place] is not _MARK:
        place -= 1
        if place < 0:
            raise NotABatchError("a mark is missing")
    found = stack[place + 1 :]
    del stack[place:]
    return found


def _last(stack: _Stack, count: int) -> tuple[Any, ...]:
    """The last `count` things, taken off the stack."""
    if count > len(stack):
        raise NotABatchError("its stack is empty")
    found = tuple(stack[len(stack) - count :])
    del stack[len(stack) - count :]
    return found


def _put_items(stack: _Stack, items: list[Any]) -> None:
    """Set keys and values, in turn, in the dict on the stack."""
    table = stack[-1]
    if not isinstance(table, dict) or len(items) % 2:
        raise NotABatchError("it puts items into what is no dict")
    table.update({_text(key): value for key, value in zip(items[::2], items[1::2], strict=True)})


def _put_entries(stack: _Stack, entries: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise NotABatchError("it appends to what is no list")
    stack[-1].extend(entries)


def _call(stack: _Stack) -> None:
    function, given = _last(stack, 2)
    if not isinstance(function, _Name) or not isinstance(given, tuple):
        raise NotABatchError("it calls what is no function")
    stack.append(_Call(function.name, given))


def _build(stack: _Stack) -> None:
    made, state = _last(stack, 2)
    if not isinstance(made, _Call) or made.state is not None:
        raise NotABatchError("it gives a state to what has none")
    made.state = state
    stack.append(made)


def _stack_global(stack: _Stack) -> None:
    stack.append(_named(*map(_text, _last(stack, 2))))


_CONSTANTS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "BYTEARRAY8", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip
"""Commands that put their argument on the stack."""

_COMMANDS: dict[str, Callable[[_Stack], None]] = {
    "PROTO": lambda _: None,
    "FRAME": lambda _: None,
    "NONE": lambda stack: stack.append(None),
    "NEWTRUE": lambda stack: stack.append(True),
    "NEWFALSE": lambda stack: stack.append(False),
    "MARK": lambda stack: stack.append(_MARK),
    "EMPTY_DICT": lambda stack: stack.append({}),
    "EMPTY_LIST": lambda stack: stack.append([]),
    "EMPTY_TUPLE": lambda stack: stack.append(()),
    "TUPLE1": lambda stack: stack.append(_last(stack, 1)),
    "TUPLE2": lambda stack: stack.append(_last(stack, 2)),
    "TUPLE3": lambda stack: stack.append(_last(stack, 3)),
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "SETITEM": lambda stack: _put_items(stack, list(_last(stack, 2))),
    "SETITEMS": lambda stack: _put_items(stack, _since_mark(stack)),
    "APPEND": lambda stack: _put_entries(stack, list(_last(stack, 1))),
    "APPENDS": lambda stack: _put_entries(stack, _since_mark(stack)),
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _call,
    "BUILD": _build,
}
"""Commands without an argument that a batch may have, and what they do to the stack."""


def _text(value: Any) -> str:
    """A short text, such as a key: that of Python 2 is bytes."""
    text = value.given[0] if isinstance(value, _Call) and value.name == _ENCODE else value
    if not isinstance(text, str | bytes | bytearray) or len(text) > _LONGEST_KEY:
        raise NotABatchError("it has something else where a key belongs")
    return text if isinstance(text, str) else text.decode("latin-1")


def _bytes(value: Any) -> bytes | bytearray:
    """Bytes, as Python 3 and Python 2 write them, and as Python 3 writes them for Python 2."""
    if isinstance(value, _Call) and value.name == _ENCODE:
        text, code = value.given
        value = text if code == "latin1" else None
    if isinstance(value, bytes | bytearray):
        return value
    if not isinstance(value, str):
        raise NotABatchError(f"it has a {type(value).__name__} where bytes belong")
    return value.encode("latin-1")


def _pixels(made: Any) -> NDArray[np.uint8]:
    """The array: its shape, type and order have to be those of a batch."""
    if not isinstance(made, _Call):
        raise NotABatchError("its data are no array")
    if made.name in _FROM_BUFFER:
        data, kind, shape, order = made.given
        in_columns = order != "C"
    elif made.name in _RECONSTRUCT:
        _, shape, kind, in_columns, data = made.state
    else:
        raise NotABatchError("its data are no array")
    if not isinstance(kind, _Call) or kind.name != _DTYPE or _text(kind.given[0]) != "u1" or in_columns:
        raise NotABatchError("its data are no array of bytes in rows")
    found = np.frombuffer(_bytes(data), np.uint8)
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] != PIXELS or shape[0] * PIXELS != len(found):
        raise NotABatchError("its data have another shape than (n, 3072)")
    return found.reshape(-1, PIXELS)


def _numbers(entries: Any, key: str) -> NDArray[np.int64]:
    if not isinstance(entries, list) or not all(type(entry) is int for entry in entries):
        raise NotABatchError(f"its {key} are no list of whole numbers")
    return np.array(entries, np.int64)
