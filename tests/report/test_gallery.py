"""Figures of the image experiments: marks where the numbers are, nothing that is not finite, told without colour."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from splitpoint.bench.judging import histogram as bins
from splitpoint.report.sheets import Histogram

from image_results import METHODS, PLACES, STRENGTHS, picture, reliability_of, sheet_of
from splitpoint.report import attack, histogram, reliability, sheets, thumbnails
from splitpoint.report.gallery import gallery


@pytest.fixture
def read(tmp_path):
    def sheet(method="splitpoint_layers", dataset="mnist/lenet", **changes):
        (tmp_path / "sheets.jsonl").write_text(json.dumps(sheet_of(dataset, method, **changes)))
        return sheets.read(tmp_path)[0]

    return sheet


def parsed(drawing):
    assert not re.search(r"\b(nan|inf)\b", drawing)
    return ElementTree.fromstring(drawing)


def words(drawing):
    return [element.text for element in parsed(drawing).iter("text")]


def circles(drawing, style):
    return [circle for circle in parsed(drawing).iter("circle") if circle.get("class") == style]


# Attack


def test_accuracy_falls_and_doubt_rises_over_the_strength(read):
    drawn = attack.draw(read())
    full, hollow = (circles(drawn, style) for style in ("full", "hollow"))
    assert len(full) == len(hollow) == len(STRENGTHS)
    down, up = ([float(circle.get("cy")) for circle in marks] for marks in (full, hollow))
    assert down == sorted(down)  # y grows downwards
    assert up == sorted(up, reverse=True)
    assert {"Split-point layers (ours)", "strength of the attack", "0.004"} <= set(words(drawn))


def test_scores_of_every_sign_and_missing_ones_are_drawn(read):
    values = {"strength": [0.0, 0.2, 0.4], "accuracy": [0.9, 0.5, 0.1], "epistemic": [-400.0, None, -100.0]}
    drawn = attack.draw(read(attack=values))
    assert len(circles(drawn, "hollow")) == 2
    assert "-400" in words(drawn)
    attack.draw(read(attack={"strength": [], "accuracy": [], "epistemic": []}))
    constant = attack.draw(read(attack=values | {"epistemic": [1.0, 1.0, 1.0]}))
    assert len(circles(constant, "hollow")) == 3


# Reliability


def test_both_curves_and_their_errors_are_shown(read):
    drawn = reliability.draw(read())
    assert "ECE 0.0800 → 0.0200" in words(drawn)
    full, hollow = (circles(drawn, style) for style in ("full", "hollow"))
    assert len(full) == len(hollow) == 13  # two of fifteen bins are empty
    radii = [float(circle.get("r")) for circle in full]
    assert radii == sorted(radii)  # the surest bins hold most pictures
    assert radii[-1] > 2 * radii[0]


@pytest.mark.parametrize("method", ["splitpoint_calibrated", "temperature_scaling", "splitpoint_layers"])
def test_methods_that_calibrate_are_drawn_also_where_nothing_changed(read, method):
    same = read(method, reliability=reliability_of(0.08))
    assert not same.recalibrated
    drawn = gallery("images", [same])
    assert "<h4>Reliability</h4>" in drawn
    assert "unchanged, ECE 0.0800" in words(reliability.draw(same))
    assert "unchanged" not in reliability.draw(read(method))


@pytest.mark.parametrize("method", ["softmax", "energy", "splitpoint", "splitpoint_default"])
def test_methods_that_do_not_calibrate_have_no_reliability_diagram(read, method):
    assert "<h4>Reliability</h4>" not in gallery("images", [read(method, reliability=reliability_of(0.08))])


# Histograms


def test_the_axis_ends_where_999_in_a_thousand_scores_do(read):
    # a bin with 0.1% of both together is folded into its neighbour, one with more is kept
    shown = {
        "logarithm": False,
        "edges": [-100, 0, 1, 2, 3, 9000],
        "inside": [0.002, 0.998, 0.0, 0.0, 0.0],
        "outside": [0.0, 0.0, 0.4, 0.599, 0.001],
        "threshold": 1.0,
    }
    found = histogram.folded(read(histogram=shown).histogram)
    assert found.edges == (0, 1, 2, 3)
    assert found.inside == pytest.approx((1.0, 0.0, 0.0))
    assert found.outside == pytest.approx((0.0, 0.4, 0.6))
    kept = histogram.folded(read(histogram=shown | {"inside": [0.003, 0.997, 0.0, 0.0, 0.0]}).histogram)
    assert kept.edges == (-100, 0, 1, 2, 3)
    drawn = histogram.draw(read(histogram=shown))
    assert "9000" not in words(drawn)
    assert "3" in words(drawn)


def test_histograms_of_one_full_bin_or_of_none_are_drawn(read):
    shown = {"logarithm": False, "edges": [0, 1, 2], "inside": [1.0, 0.0], "outside": [1.0, 0.0], "threshold": 0.5}
    assert histogram.folded(read(histogram=shown).histogram).edges == (0, 1)
    empty = read(histogram=shown | {"inside": [0.0, 0.0], "outside": [0.0, 0.0]})
    assert histogram.folded(empty.histogram) == empty.histogram
    parsed(histogram.draw(empty))


def test_bins_of_a_run_end_at_the_quantiles_and_count_everything():
    inside = torch.linspace(-1, 1, 1001)
    outside = torch.cat([torch.linspace(-1, 1, 998), torch.tensor([-1e6, 1e6, 2e6])])
    found = bins(inside, outside, 0.9)
    assert (found["edges"][0], found["edges"][-1]) == pytest.approx((-1.0, 1.0), abs=0.01)
    assert (sum(found["inside"]), sum(found["outside"])) == pytest.approx((1, 1))
    assert found["outside"][-1] > found["outside"][-2]  # the extremes are in the last bin
    few = bins(torch.tensor([-1.0, 0.0]), torch.tensor([1e6]), 0.9)
    assert (few["edges"][0], few["edges"][-1]) == (-1.0, 1e6)


def test_captions_say_that_the_outermost_bins_hold_more(read):
    assert "the outermost bins also count what lies beyond" in gallery("images", [read("ddu")])


def test_bars_and_threshold_are_where_the_numbers_are(read):
    shown = {"logarithm": False, "edges": [0, 1, 2], "inside": [1.0, 0.0], "outside": [0.5, 0.5], "threshold": 1.0}
    drawn = histogram.draw(read(histogram=shown))
    (line,) = (line for line in parsed(drawn).iter("line") if line.get("class") == "threshold")
    assert float(line.get("x1")) == (histogram.LEFT + histogram.RIGHT) / 2
    assert "about 0.5 in the middle" in drawn
    assert {"0", "1", "2"} <= set(words(drawn))


def test_a_threshold_out_of_the_range_is_not_drawn(read):
    shown = {"logarithm": True, "edges": [0, 1], "inside": [1.0], "outside": [1.0], "threshold": 2.0}
    assert 'class="threshold"' not in histogram.draw(read(histogram=shown))
    assert "nan" not in histogram.draw(read(histogram=shown | {"threshold": None}))


@pytest.mark.parametrize(
    ("edges", "wanted"),
    [
        ((-12.0, 2.0), ["1e-12", "1e-9", "1e-6", "1e-3", "1"]),
        ((-0.9, 0.5), ["0.2", "0.5", "1", "2"]),
        ((-4.5, -2.5), ["1e-4", "1e-3"]),
    ],
)
def test_logarithmic_axes_show_the_score_itself(edges, wanted):
    assert list(histogram.labels(Histogram(True, edges, (1.0,), (1.0,), 0.0)).values()) == wanted


# Thumbnails


class Pictures(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.images, self.wrong = [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs))
        self.wrong += tag == "li" and dict(attrs).get("class") == "wrong"


def test_wrong_answers_are_marked_in_words_and_only_where_one_is_right(read):
    shown = [{"picture": picture(1), "label": 1, "predicted": said} for said in (1, 7)]
    drawn = thumbnails.draw(read(thumbnails={"most doubted, test": shown, "most doubted, outside": shown}))
    found = Pictures(drawn)
    assert [image["alt"] for image in found.images] == [
        "predicted 1, label 1",
        "predicted 7, label 1, wrong",
        "predicted 1, out of distribution",
        "predicted 7, out of distribution",
    ]
    assert found.wrong == 1
    assert "✕ 7, is 1" in drawn
    assert {(image["width"], image["class"]) for image in found.images} == {("56", "pixels")}


def test_large_pictures_are_not_drawn_as_pixels(read):
    shown = [{"picture": picture(1, 224), "label": 1, "predicted": 1}]
    (image,) = Pictures(thumbnails.draw(read(thumbnails={"most doubted, test": shown}))).images
    assert "class" not in image


def test_sheets_without_pictures_have_no_figure_of_them(read):
    assert thumbnails.draw(read()) == ""
    assert thumbnails.draw(read(thumbnails={"most doubted, test": []})) == ""


# All of a data set


def test_every_figure_of_every_data_set(image_results):
    drawn = gallery("images", sheets.read(image_results))
    kept = ("softmax", "splitpoint", "splitpoint_default")
    assert drawn.count(" under attack. ") == len(PLACES) * len(METHODS)
    assert drawn.count(": accuracy against confidence, ") == len(PLACES) * (len(METHODS) - len(kept))
    assert drawn.count("; threshold ") == len(PLACES) * len(METHODS)
    assert drawn.count("<img ") == len(PLACES) * 48
    assert drawn.count('role="tab"') == drawn.count('role="tabpanel"') == len(PLACES)


def test_one_data_set_needs_no_tabs_and_figures_without_content_are_left_out(read):
    drawn = gallery("images", [read("softmax")])
    assert "role=" not in drawn.replace('role="img"', "")
    assert "Reliability" not in drawn


def test_pictures_of_any_method_are_shown_and_their_absence_is_told(read):
    shown = [{"picture": picture(1), "label": 1, "predicted": 1}]
    drawn = gallery("images", [read("softmax"), read(thumbnails={"most doubted, test": shown})])
    assert "By the epistemic score of Split-point layers (ours)" in drawn
    assert "None are stored" not in drawn
    none = gallery("images", [read("softmax"), read()])
    assert "<img" not in none
    assert "None are stored for these records." in none
