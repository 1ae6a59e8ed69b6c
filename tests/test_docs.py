"""The documentation cannot rot: its code runs, its links resolve, and it names everything that is public."""

import ast
import re
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import splitpoint
from splitpoint.baselines import METHODS
from splitpoint.bench.suites import SUITES
from splitpoint.datasets import SETS
from splitpoint.metrics import METRICS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {"docs/without-torch.md": ["onnxruntime", "onnxscript"]}
"""Packages that the code of some pages needs."""

NAME = re.compile(r"`(\w+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
EXPECTED_PAGES = {
    "api",
    "choosing-a-layer",
    "costs",
    "data",
    "index",
    "limits",
    "methods",
    "reading-the-scores",
    "reports",
    "which-calibration",
    "without-torch",
}


def name(page):
    return str(page.relative_to(ROOT))


def anchors(page):
    """Anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_there():
    assert {page.stem for page in PAGES} >= EXPECTED_PAGES


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=name)
def test_code_runs_in_order_without_a_warning(page, tmp_path, monkeypatch):
    for package in NEEDS.get(name(page), []):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    namespace = {"__name__": "page"}
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in BLOCK.finditer(text):
            lines_above = text[: block.start(1)].count("\n")  # so that a traceback names the line of the page
            exec(compile("\n" * lines_above + block[1], name(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_and_anchors_resolve(page):
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{name(page)} links to {link}, which does not exist"
        assert not anchor or anchor in anchors(target), f"{name(page)} links to {link}, which has no such heading"


@pytest.mark.parametrize("public", splitpoint.__all__)
def test_every_public_name_is_in_the_reference(public):
    text = (ROOT / "docs" / "api.md").read_text()
    assert f"`{public}`" in text or re.search(rf"^#+ .*\b{public}\b", text, re.MULTILINE)


@pytest.mark.parametrize("module", ["attacks", "metrics", "consistency", "losses"])
def test_every_function_of_a_public_module_is_in_the_reference(module):
    found = vars(getattr(splitpoint, module))
    package = f"splitpoint.{module}"
    own = {key for key, value in found.items() if callable(value) and value.__module__.startswith(package)}
    text = (ROOT / "docs" / "api.md").read_text()
    assert {key for key in own if not key.startswith("_") and f"`{key}`" not in text} == set()


@pytest.mark.parametrize("method", [splitpoint.SplitPointRegressor, splitpoint.SplitPointClassifier])
def test_every_setting_is_in_the_reference(method):
    text = (ROOT / "docs" / "api.md").read_text()
    assert [field.name for field in fields(method) if f"`{field.name}`" not in text] == []


@pytest.mark.parametrize("kind", [splitpoint.RegressionPrediction, splitpoint.ClassificationPrediction])
def test_every_field_of_a_prediction_is_in_the_reference(kind):
    text = (ROOT / "docs" / "api.md").read_text()
    assert [key for key in kind.__dataclass_fields__ if f"`{key}`" not in text] == []


def section(page, title):
    """The text below a heading, up to the next one."""
    return re.search(rf"^#+ {title}$(.*?)(?=^#|\Z)", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)[1]


def rows(page, title):
    """Cells of the lines of tables there that begin with a name."""
    lines = [line for line in section(page, title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_methods_and_their_settings_are_those_of_the_table():
    found = [row for row in rows("methods.md", "The methods") if len(row) > 2]
    assert [row[0].strip("`") for row in found] == list(METHODS)
    for name, *_, settings in found:
        defaults = {field.name: field.default for field in fields(METHODS[name.strip("`")].method)}
        for setting, default in re.findall(r"`(\w+)` \((.+?)\)", settings):
            assert defaults[setting] == ast.literal_eval(default), (name, setting)


def test_shared_settings_of_methods_exist():
    kinds = [splitpoint.SplitPointRegressor, *(recipe.method for recipe in METHODS.values())]
    known = {field.name for kind in kinds for field in fields(kind)}
    named = {name for row in rows("methods.md", "The methods") if len(row) == 2 for name in NAME.findall(row[0])}
    assert known >= named >= {"training", "epochs", "confidence_level"}


def test_every_figure_that_evaluate_gives_is_in_the_reference():
    given = {"ood", "adversarial", "prediction.scale", "prediction.set_level"}
    figures = {name for name, entry in METRICS.items() if entry.function is not None and given.issuperset(entry.needs)}
    table = [line for line in section("api.md", "evaluate").splitlines() if line.startswith("| ")]
    assert set(NAME.findall("\n".join(table))) - {"ood", "adversarial"} == figures | {"rows", "level"}


def test_every_suite_is_a_command_of_the_benchmark_page():
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert set(re.findall(r"^\| `splitpoint bench ([\w-]+)` \|", text, re.MULTILINE)) == set(SUITES)


def test_sets_out_of_distribution_are_those_of_the_table():
    found = {name: row[1] for row in rows("benchmarks.md", "Image experiments") for name in NAME.findall(row[0])}
    assert {name: tuple(NAME.findall(ood)) for name, ood in found.items()} == {
        name: entry.ood for name, entry in SETS.items() if entry.kind == "images" and entry.ood
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_words_are_those_of_the_library(page):
    """Images are no pictures, and what is out of distribution is not foreign."""
    assert re.findall(r"\b(?:pictures?|foreign)\b", page.read_text(), re.IGNORECASE) == []


def test_every_data_set_is_in_its_page():
    text = (ROOT / "docs" / "data.md").read_text()
    for key, entry in SETS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{key}`"))
        assert entry.licence in row
        if entry.kind == "table":
            assert entry.size in row
            assert all(target in row for target in entry.targets)


def test_readme_shows_code_early_and_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines.index("```python") < 40
    assert len(lines) < 250


def test_citation_names_software_and_paper():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    keys = {line.split(":")[0] for line in lines if line and not line.startswith((" ", "-"))}
    assert keys >= {"cff-version", "message", "type", "title", "version", "license", "authors", "references"}
    assert f"version: {splitpoint.__version__}" in lines
    text = "\n".join(lines)
    assert "Split-Point Self-Consistency Verification" in text
    assert "family-names: Zhao" in text
    assert "family-names: Chen" in text


def test_licence_is_the_whole_apache_licence():
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
