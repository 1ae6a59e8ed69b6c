"""The shape of the source: imports follow the arrow, modules stay small, nothing prints, everything public is told."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import splitpoint as sp
from splitpoint import errors

PACKAGE = Path(sp.__file__).parent
MOST_LINES = 400

ORDER = [
    {"errors", "wrappers", "operators"},
    {"checks", "groups", "locks", "runtime", "settings", "tensors", "model_inputs", "divergence"},
    {"conformal", "frozen"},
    {"hooks"},
    {"files", "prediction", "batches", "layout", "layer_setting"},
    {"consistency", "losses", "calls", "products", "marginals"},
    {"branches", "likeness"},
    {"features", "tasks", "metrics", "datasets", "attacks"},
    {"cache", "calibration", "inspection", "batch_rows", "fingerprint"},
    {"heads", "disk_table", "opening"},
    {"collector", "folded"},
    {"recording"},
    {"image_support"},
    {"training", "predictor", "memorisation", "selfcheck"},
    {"posthoc"},
    {"networks", "evaluation"},
    {"method"},
    {"head_method", "agreement"},
    {"regression", "classification"},
    {"baselines"},
    {"storage", "bench", "export"},
    {"report"},
    {"demo", "verdicts"},
    {"commands"},
    {"cli"},
]
"""Parts of the package from the ground up; a part may import only parts that stand before it."""

ONLY = {
    "errors": set(),
    "wrappers": set(),
    "operators": set(),
    "runtime": {"errors"},
    "checks": {"errors"},
    "groups": {"errors"},
    "locks": {"errors"},
    "settings": {"errors"},
    "tensors": {"errors"},
    "model_inputs": {"errors"},
    "divergence": {"errors"},
    "files": {"errors"},
    "consistency": {"errors"},
    "metrics": {"errors", "prediction", "settings", "tensors"},
    "datasets": {"errors", "files"},
}
"""Parts that may import nothing but these."""

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


def targets(node):
    """Modules of the package that a statement imports, by name or through `importlib`, with the doors before them."""
    if isinstance(node, ast.Import):
        dotted = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        dotted = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        dotted = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    else:
        return set()
    inside = [name.split(".")[1:] for name in dotted if name.split(".")[0] == "splitpoint"]
    return {".".join(parts[:depth]) for parts in inside for depth in range(1, len(parts) + 1)} & MODULES.keys()


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imports(node):
    """Modules that are imported anywhere in a tree, inside functions too; those for type checkers do not count."""
    if is_type_checking(node):
        return set().union(*map(imports, node.orelse))
    return targets(node).union(*map(imports, ast.iter_child_nodes(node)))


IMPORTS = {name: imports(tree) - {name} for name, tree in TREES.items() if name}


def part(name):
    return name.split(".")[0]


def parts_imported():
    """Pairs (part, part it imports), within a part left out."""
    pairs = {(part(name), part(target)) for name, found in IMPORTS.items() for target in found}
    return {(a, b) for a, b in pairs if a != b}


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


def test_imports_inside_functions_are_seen_and_those_for_types_left_out():
    source = """
from typing import TYPE_CHECKING
import splitpoint.cache
from splitpoint import losses
from splitpoint.baselines.energy import Energy
if TYPE_CHECKING:
    from splitpoint.report import write
def f():
    from splitpoint.storage import load
    import importlib
    return importlib.import_module("splitpoint.demo")
"""
    assert imports(ast.parse(source)) == {"cache", "losses", "baselines", "baselines.energy", "storage", "demo"}


# Imports, inside functions too


def test_every_part_has_its_place():
    found = {part(name) for name in MODULES if name}
    assert found == set(RANK)


def test_imports_follow_the_arrow():
    assert {(a, b) for a, b in parts_imported() if RANK[b] >= RANK[a]} == set()


@pytest.mark.parametrize("name", ONLY)
def test_parts_that_stand_alone_do(name):
    assert {b for a, b in parts_imported() if a == name} <= ONLY[name]


def test_modules_do_not_import_in_circles():
    """Module by module, so that circles within a package are seen too; a package's own door counts as it imports."""
    edges = {(name, target) for name, found in IMPORTS.items() for target in found}
    assert cycle_in({(a, b) for a, b in edges if not a.startswith(f"{b}.")}) is None


def test_only_the_door_imports_the_package_itself():
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if name and isinstance(node, ast.Import):
                assert "splitpoint" not in {alias.name for alias in node.names}, name


# Size and manners: each test names all modules that break the rule


def offenders(broken):
    """What breaks a rule, module by module, for those where anything does."""
    found = {name or "__init__": list(broken(name, tree)) for name, tree in TREES.items()}
    return {name: what for name, what in found.items() if what}


def test_modules_stay_small():
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_only_the_command_line_prints():
    def printing(name, tree):
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and name != "cli")
        return (f"line {call.lineno}" for call in calls if ast.unparse(call.func) == "print")

    assert offenders(printing) == {}


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


def test_everything_public_has_a_docstring():
    def silent(_, tree):
        named = {"the module": tree} | public(tree)
        return (name for name, node in named.items() if not ast.get_docstring(node))

    assert offenders(silent) == {}


def raised(tree):
    """Names, arguments and lines of the errors that a module raises by calling them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            yield node.exc.func.id, node.exc.args, node.lineno


def test_the_library_raises_its_own_errors_only():
    plain = {"Exception", "BaseException", "ValueError", "TypeError", "RuntimeError", "KeyError", "IndexError"}
    assert sum(len(list(raised(tree))) for tree in TREES.values()) > 10, "the scan sees errors"
    assert offenders(lambda _, tree: (f"line {line}" for name, _, line in raised(tree) if name in plain)) == {}


def test_every_own_error_comes_with_a_message():
    own = {name for name, kind in vars(errors).items() if isinstance(kind, type)}

    def silent(_, tree):
        return (f"line {line}" for name, arguments, line in raised(tree) if name in own and not arguments)

    assert offenders(silent) == {}


def test_no_module_is_named_after_nothing():
    empty = {"utils", "util", "common", "helpers", "misc"}
    assert [name for name in MODULES if empty & set(name.split("."))] == []


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
