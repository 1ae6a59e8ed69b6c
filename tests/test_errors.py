"""The small error hierarchy: one root, each kind also a ValueError, nothing else raised on purpose."""

import ast
import inspect
import pickle
from pathlib import Path

import pytest

from splitpoint import errors

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind is not errors.SplitPointError]
SOURCES = sorted(Path(errors.__file__).parent.rglob("*.py"))
PLAIN = {"Exception", "BaseException", "ValueError", "TypeError", "RuntimeError", "KeyError", "IndexError"}


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


def raised(source):
    """Names and messages of the errors that a module raises by calling them."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            yield node.exc.func.id, node.exc.args, node.lineno


def test_the_scan_below_sees_errors():
    assert sum(len(list(raised(source))) for source in SOURCES) > 10


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_library_raises_its_own_errors_only(source):
    assert [(name, line) for name, _, line in raised(source) if name in PLAIN] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_own_error_comes_with_a_message(source):
    own = {kind.__name__ for kind in KINDS}
    assert [line for name, args, line in raised(source) if name in own and not args] == []
