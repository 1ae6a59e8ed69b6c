"""Figures: marks where the numbers are, nothing that is not finite, and well-formed drawings."""

import re
from xml.etree import ElementTree

import pytest

from splitpoint.report import plots
from splitpoint.report.ranks import compare
from splitpoint.report.sections import sections


def parsed(drawing):
    assert not re.search(r"\b(nan|inf)\b", drawing)
    return ElementTree.fromstring(drawing)


def words(drawing):
    return [element.text for element in parsed(drawing).iter("text")]


# Critical differences


def test_critical_difference_names_every_method_with_its_rank():
    comparison = compare(
        {name: [place] * 12 for place, name in enumerate(["splitpoint_paper", "laplace", "conformal"])}
    )
    drawn = plots.critical_difference(comparison)
    assert {"Split-point (paper)  1.00", "Laplace  2.00", "3.00  Conformal"} <= set(words(drawn))
    assert f"critical difference {comparison.difference:.2f}" in words(drawn)
    bars = [line for line in parsed(drawn).iter("line") if line.get("class") == "group"]
    assert len(bars) == 1 + len(comparison.groups)


# Coverage and width


def test_marks_are_relative_to_the_median_method_of_each_data_set(cell):
    records = []
    for dataset, scale in (("boston", 1.0), ("wine", 10.0)):
        for method, width in (("laplace", 1.0), ("gaussian", 2.0), ("conformal", 8.0)):
            metrics = {"picp": [0.9, 0.94], "mpiw": [scale * width] * 2}
            records += cell(dataset, method, metrics)
    records += cell("boston", "splitpoint_paper", {"picp": [0.9, 0.9], "mpiw": [1.0, 1.0]})
    (section,) = sections(records)
    found = {mark.method: mark for mark in plots.marks(section)}
    assert set(found) == {"laplace", "gaussian", "conformal"}  # splitpoint_paper was not run on wine
    assert [found[name].width for name in ("laplace", "gaussian", "conformal")] == pytest.approx([0.5, 1.0, 4.0])
    assert found["laplace"].coverage == pytest.approx(0.92)
    drawn = plots.coverage_against_width(list(found.values()))
    assert "Laplace, 0.920" in words(drawn)


# Settings


def ablation(cell, *values):
    return sections(
        [
            record
            for value in values
            for record in cell("concrete", "splitpoint_paper", {"rmse": [7.0, 7.2]}, variant=f"train_fraction={value}")
        ]
    )[0]


def test_numeric_settings_are_told_from_others(cell):
    assert plots.numeric(ablation(cell, 0.2, 1.0))
    assert not plots.numeric(ablation(cell, 0.2))
    assert not plots.numeric(ablation(cell, 0.2, "joint"))
    assert not plots.numeric(sections(cell("wine", "laplace", {"rmse": [1.0, 1.0]}))[0])


def test_long_numbers_have_room_beside_the_axis(cell):
    records = [
        record
        for share, value in ((0.2, 0.0228), (1.0, 0.0229))
        for record in cell("concrete", "splitpoint_paper", {"nll": [value, value]}, variant=f"train_fraction={share}")
    ]
    (section,) = sections(records)
    table = section.tables[0]
    (index,) = (index for index, column in enumerate(table.columns) if column.metric.name == "nll")
    drawn = parsed(plots.dependence(table, index))
    numbers = [text for text in drawn.iter("text") if text.get("text-anchor") == "end"]
    assert "0.02285" in [text.text for text in numbers]
    assert all(float(text.get("x")) >= 6.3 * len(text.text) for text in numbers)  # 11 pixels high
    (frame,) = drawn.iter("rect")
    assert float(frame.get("x")) + float(frame.get("width")) == 232


def test_dependence_shows_ours_and_the_published_figures(cell):
    section = ablation(cell, 0.2, 0.5, 1.0)
    drawn = parsed(plots.dependence(section.tables[0], 0))
    marks = [circle.get("class") for circle in drawn.iter("circle")]
    assert marks.count("full") == 3
    assert marks.count("hollow") == 2  # nothing is published for 0.5


def test_a_value_that_is_a_word_has_a_level_line(cell):
    variants = [f"train_fraction={share}" for share in (0.2, 1.0)] + ["training=joint"]
    records = [
        record
        for name in variants
        for record in cell("concrete", "splitpoint_paper", {"rmse": [7.0, 7.2]}, variant=name)
    ]
    (section,) = sections(records)
    assert section.rows == ("0.2", "1.0", "joint")
    assert plots.numeric(section)
    drawn = parsed(plots.dependence(section.tables[0], 0))
    levels = [line for line in drawn.iter("line") if line.get("class") == "level"]
    assert len(levels) == 1
    assert levels[0].get("y1") == levels[0].get("y2")
    assert "joint" in words(plots.dependence(section.tables[0], 0))
    assert [circle.get("class") for circle in drawn.iter("circle")].count("full") == 2
