"""The shape of the source: imports follow the arrow, modules stay small, nothing prints, everything public is told."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import splitpoint as sp

PACKAGE = Path(sp.__file__).parent
MOST_LINES = 400

ORDER = [
    {"errors"},
    {"files", "prediction"},
    {"consistency", "losses"},
    {"batches", "layout", "hooks", "products", "optimisers"},
    {"surgery"},
    {"stacking"},
    {"networks"},
    {"features"},
    {"cache"},
    {"calibration"},
    {"leverage", "recording"},
    {"heads"},
    {"training"},
    {"joint"},
    {"predictor"},
    {"method"},
    {"regression", "classification"},
    {"inspection", "attacks", "metrics", "datasets"},
    {"evaluation", "baselines"},
    {"storage"},
    {"bench"},
    {"report"},
    {"demo"},
    {"cli"},
]
"""Parts of the package from the ground up; a part may import only parts that stand before it."""

ONLY = {
    "errors": set(),
    "files": {"errors"},
    "consistency": {"errors"},
    "metrics": {"errors", "prediction"},
    "datasets": {"errors", "files"},
}
"""Parts that may import nothing but these."""

DELAYED = {("predictor", "storage")}
"""Imports inside functions that point upward on purpose: saving needs the table of all methods."""

RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}


def modules():
    """Dotted names and files, the package's own door left out."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
every_module = pytest.mark.parametrize("name", [name or "__init__" for name in MODULES])


def tree_of(name):
    return TREES["" if name == "__init__" else name]


def targets(node):
    """Modules of the package that an import statement names."""
    if isinstance(node, ast.Import):
        dotted = [alias.name for alias in node.names]
    else:
        assert node.level == 0, "relative import"
        dotted = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    inside = {
        name.removeprefix("splitpoint").removeprefix(".") for name in dotted if name.split(".")[0] == "splitpoint"
    }
    return {name for name in inside if name in MODULES and name}


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imports(tree, delayed):
    """Modules that are imported at load time, or (delayed) inside functions; type checking does not count."""
    found = set()

    def visit(node, inside):
        if is_type_checking(node):
            for child in node.orelse:
                visit(child, inside)
            return
        if isinstance(node, ast.Import | ast.ImportFrom) and inside == delayed:
            found.update(targets(node))
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, False)
    return found


def part(name):
    return name.split(".")[0]


def parts_imported(delayed):
    """Pairs (part, part it imports), within a part left out."""
    return {
        (part(name), part(target))
        for name, tree in TREES.items()
        if name
        for target in imports(tree, delayed)
        if part(target) != part(name)
    }


def cycle_in(edges):
    """A cycle of a directed graph as a list of nodes, or None."""
    graph = {}
    for start, stop in edges:
        graph.setdefault(start, set()).add(stop)
    done = set()

    def walk(node, trail):
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in done:
            return None
        for following in sorted(graph.get(node, ())):
            found = walk(following, [*trail, node])
            if found:
                return found
        done.add(node)
        return None

    return next(filter(None, (walk(node, []) for node in sorted(graph))), None)


# The checks can fail


def test_a_cycle_is_seen():
    assert cycle_in({("a", "b"), ("b", "c")}) is None
    assert cycle_in({("a", "b"), ("b", "c"), ("c", "b")}) == ["b", "c", "b"]
    assert cycle_in({("a", "a")}) == ["a", "a"]


def test_imports_are_told_apart_by_when_they_happen():
    source = """
from typing import TYPE_CHECKING
import splitpoint.cache
from splitpoint import losses
from splitpoint.errors import DataError
if TYPE_CHECKING:
    from splitpoint.cli import main
def f():
    from splitpoint.storage import save
"""
    tree = ast.parse(source)
    assert imports(tree, delayed=False) == {"cache", "losses", "errors"}
    assert imports(tree, delayed=True) == {"storage"}


# Imports


def test_every_part_has_its_place():
    found = {part(name) for name in MODULES if name}
    assert found == set(RANK)


def test_imports_follow_the_arrow():
    upward = {(a, b) for a, b in parts_imported(delayed=False) if RANK[b] >= RANK[a]}
    assert upward == set()


@pytest.mark.parametrize("name", ONLY)
def test_parts_that_stand_alone_do(name):
    allowed = ONLY[name]
    assert {b for a, b in parts_imported(delayed=False) | parts_imported(delayed=True) if a == name} <= allowed


def test_modules_do_not_import_in_circles():
    """Module by module, so that circles within a package are seen too; a package's own door counts as it imports."""
    edges = {(name, target) for name, tree in TREES.items() for target in imports(tree, delayed=False) if name}
    assert cycle_in({(a, b) for a, b in edges if not a.startswith(f"{b}.")}) is None


def test_delayed_imports_make_no_circle_but_the_one_for_saving():
    delayed = parts_imported(delayed=True)
    upward = {(a, b) for a, b in delayed if RANK[b] >= RANK[a]}
    assert upward == DELAYED
    assert cycle_in(parts_imported(delayed=False) | (delayed - DELAYED)) is None


def test_only_the_door_imports_the_package_itself():
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if name and isinstance(node, ast.Import):
                assert "splitpoint" not in {alias.name for alias in node.names}, name


# Size and manners


@every_module
def test_modules_stay_small(name):
    path = MODULES["" if name == "__init__" else name]
    assert len(path.read_text().splitlines()) <= MOST_LINES


@every_module
def test_only_the_command_line_prints(name):
    calls = [
        node.lineno
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert name == "cli" or calls == []


def public(tree):
    """Public functions and classes of a module with the methods of the classes, by name."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

    def visit(body, prefix):
        for node in body:
            if isinstance(node, kinds) and not node.name.startswith("_"):
                yield f"{prefix}{node.name}", node
                if isinstance(node, ast.ClassDef):
                    yield from visit(node.body, f"{node.name}.")

    return dict(visit(tree.body, ""))


@every_module
def test_everything_public_has_a_docstring(name):
    tree = tree_of(name)
    assert ast.get_docstring(tree), "module"
    assert [found for found, node in public(tree).items() if not ast.get_docstring(node)] == []


@every_module
def test_no_module_is_named_after_nothing(name):
    assert not set(name.split(".")) & {"utils", "util", "common", "helpers", "misc"}


def test_the_door_exports_what_it_says_and_each_name_has_a_docstring():
    assert sorted(sp.__all__) == list(sp.__all__)
    assert len(set(sp.__all__)) == len(sp.__all__)
    for name in sp.__all__:
        assert name == "__version__" or getattr(sp, name).__doc__, name


# What is imported with it


def loaded_after(statement):
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    code = f"{statement}\nimport sys\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_package_imports_nothing_heavy():
    assert not loaded_after("import splitpoint") & {
        "matplotlib",
        "sklearn",
        "pandas",
        "scipy",
        "transformers",
        "torchvision",
    }


def test_the_check_sees_what_is_imported():
    assert "scipy" in loaded_after("import scipy")
