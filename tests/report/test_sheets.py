"""Sheets of the image experiments: read line by line, torn ones left out, in the order of the page."""

import json
import math

import pytest

from image_results import picture, reliability_of, sheet_of
from splitpoint.report import sheets
from splitpoint.report.sheets import Reliability


def written(folder, *lines):
    (folder / "sheets.jsonl").write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return sheets.read(folder)


def test_no_file_no_sheets(tmp_path):
    assert sheets.read(tmp_path) == []


def test_order_of_the_page_and_the_last_line_of_a_place_counts(tmp_path):
    old = sheet_of("mnist/lenet", "softmax", reliability=reliability_of(0.5))
    found = written(
        tmp_path,
        sheet_of("cifar10/vgg16", "softmax"),
        old,
        sheet_of("mnist/lenet", "splitpoint"),
        sheet_of("mnist/lenet", "softmax"),
    )
    places = [(sheet.dataset, sheet.method) for sheet in found]
    assert places == [("mnist/lenet", "softmax"), ("mnist/lenet", "splitpoint"), ("cifar10/vgg16", "softmax")]
    assert found[0].after.ece == pytest.approx(0.08)


@pytest.mark.parametrize(
    "changes",
    [
        {"attack": {"strength": [0.0, 0.1], "accuracy": [1.0], "epistemic": [0.0, 1.0]}},
        {"histogram": {"logarithm": True, "edges": [0, 1], "inside": [1, 2], "outside": [1, 2], "threshold": 0}},
        {"histogram": {"logarithm": True, "edges": [0, None], "inside": [1], "outside": [1], "threshold": 0}},
        {"thumbnails": {"most doubted, test": [{"picture": '"><script>', "label": 1, "predicted": 1}]}},
        {"thumbnails": {"most doubted, test": [{"picture": "AAAA", "label": 1, "predicted": 1}]}},
        {"thumbnails": {"most doubted, test": [{"picture": picture(0), "label": "a", "predicted": 1}]}},
        {"reliability": []},
        {"method": 3},
    ],
    ids=["uneven", "edges", "edge", "script", "no picture", "no label", "empty", "no name"],
)
def test_lines_of_another_form_do_not_count(tmp_path, changes):
    whole = sheet_of("mnist/lenet", "splitpoint")
    found = written(tmp_path, sheet_of("mnist/lenet", "softmax") | changes, json.dumps(whole)[:300], "[]", whole)
    assert [sheet.method for sheet in found] == ["splitpoint"]


def test_calibration_error_by_hand():
    # 1/4 |0.5 - 0.6| + 3/4 |0.8 - 0.9| = 0.1; the empty bin does not count
    found = Reliability((math.nan, 0.6, 0.9), (math.nan, 0.5, 0.8), (0, 1, 3))
    assert found.ece == pytest.approx(0.1)
    assert found.bins == [(0.6, 0.5, 0.25), (0.9, 0.8, 0.75)]
    assert Reliability((), (), ()).ece == 0


def test_methods_that_change_probabilities_are_told_from_others(tmp_path):
    kept, changed = written(tmp_path, sheet_of("mnist/lenet", "softmax"), sheet_of("mnist/lenet", "splitpoint_layers"))
    assert not kept.recalibrated
    assert changed.recalibrated


def test_thumbnails_know_how_wide_they_are(tmp_path):
    (sheet,) = written(tmp_path, sheet_of("cifar10/vgg16", "splitpoint_default_calibrated"))
    assert {one.width for shown in sheet.thumbnails.values() for one in shown} == {32}
