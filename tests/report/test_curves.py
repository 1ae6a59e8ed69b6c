"""Curves of the cubic task: read line by line, torn ones left out, drawn for every method."""

import json
from xml.etree import ElementTree

import pytest

from splitpoint.report import curves


def test_no_file_no_curves(tmp_path):
    assert curves.read(tmp_path) == []


def test_curves_are_read_and_torn_or_foreign_lines_do_not_count(tmp_path, curve):
    whole = json.dumps(curve("splitpoint"))
    uneven = json.dumps(curve("laplace") | {"mean": [1.0]})
    lines = [whole, whole[:100], "[]", "{}", uneven, json.dumps(curve("gaussian") | {"x": 3})]
    (tmp_path / "curves.jsonl").write_text("\n".join(lines))
    (found,) = curves.read(tmp_path)
    assert found.method == "splitpoint"
    assert found.mean == (-216.0, -27.0, 0.0, 27.0, 216.0)


def test_figures_have_two_parts_in_the_order_of_the_methods(results):
    drawn = [ElementTree.fromstring(figure) for figure in curves.draw(curves.read(results))]
    titles = [next(figure.iter("text")).text for figure in drawn]
    assert titles == ["Deep ensemble", "Split-point (paper)"]
    for figure in drawn:
        assert len(figure.findall("svg")) == 2
        assert [path.get("class") for path in figure.iter("path")].count("truth") == 3
        assert "nan" not in ElementTree.tostring(figure, encoding="unicode")


@pytest.mark.parametrize("empty", ["x", "train_x"])
def test_empty_curves_are_drawn_empty(tmp_path, curve, empty):
    kept = ("noise", "method", *([] if empty == "x" else ["x"]))
    values = curve("splitpoint")
    bare = {
        key: value if key in kept or (empty == "train_x" and not key.startswith("train")) else []
        for key, value in values.items()
    }
    (tmp_path / "curves.jsonl").write_text(json.dumps(bare))
    (drawn,) = curves.draw(curves.read(tmp_path))
    ElementTree.fromstring(drawn)
