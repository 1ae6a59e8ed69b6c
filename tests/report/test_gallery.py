"""Figures of artefacts: marks where the numbers are, nothing that is not finite, told without colour."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from math import nan
from xml.etree import ElementTree

import pytest
import torch

from image_results import METHODS, PLACES, STRENGTHS, drawing_of, image_png, reliability_of
from splitpoint.bench.artefacts import Attack, Curve, Drawing, Histogram, Thumbnail, Thumbnails
from splitpoint.bench.drawings import histogram as bins
from splitpoint.bench.map_artefacts import MapDrawing
from splitpoint.report import gallery
from splitpoint.report.facts import title
from splitpoint.report.gallery import curves, drawings, folded, labels


def drawing(method="splitpoint_layers", place="mnist/lenet", **changes):
    return drawing_of(place, method, **changes)


def attack(one):
    return gallery.attack(title(one.cell.method), one.attack)


def reliability(one):
    return gallery.reliability(title(one.cell.method), one.reliability_before, one.reliability)


def histogram(one):
    return gallery.histogram(title(one.cell.method), one.histogram)


def thumbnails(one):
    return gallery.thumbnails(title(one.cell.method), one.thumbnails)


def parsed(drawing):
    assert not re.search(r"\b(nan|inf)\b", drawing)
    return ElementTree.fromstring(drawing)


def words(drawing):
    return [element.text for element in parsed(drawing).iter("text")]


def circles(drawing, style):
    return [circle for circle in parsed(drawing).iter("circle") if circle.get("class") == style]


# Curves


def figures(text):
    """The drawings of a figure with several."""
    parts = text[: text.index("</div>")].split('<svg class="plot"')[1:]
    return [ElementTree.fromstring(f'<svg class="plot"{part}') for part in parts]


def test_curves_have_two_parts_in_the_order_of_the_methods(results):
    found = [one for one in gallery.read(results) if isinstance(one, Curve)]
    drawn = figures(curves("cubic", found))
    titles = [next(figure.iter("text")).text for figure in drawn]
    assert titles == ["Deep ensemble", "Split-point (paper)"]
    for figure in drawn:
        assert len(figure.findall("svg")) == 2
        assert [path.get("class") for path in figure.iter("path")].count("truth") == 3
        assert "nan" not in ElementTree.tostring(figure, encoding="unicode")


GRID = ("x", "mean", "lower", "upper", "epistemic", "truth", "true_lower", "true_upper")


def paths(figure):
    """How many points the paths of a curve have, by their style."""
    return {path.get("class"): len(re.findall("[ML]", path.get("d"))) for path in figure.iter("path")}


def test_empty_curves_are_drawn_empty(curve):
    (figure,) = figures(curves("cubic", [curve("splitpoint", **dict.fromkeys(GRID, ()))]))
    assert paths(figure) == {"interval": 0, "dots": 3, "truth": 0, "ours": 0, "score-area": 0, "score": 0}
    assert next(figure.iter("text")).text == "Split-point (ours)"


def test_curves_without_training_rows_have_no_dots(curve):
    (figure,) = figures(curves("cubic", [curve("splitpoint", train_x=(), train_y=())]))
    assert paths(figure) == {"interval": 10, "dots": 0, "truth": 5, "ours": 5, "score-area": 6, "score": 4}


# Attack


def test_accuracy_falls_and_doubt_rises_over_the_strength():
    drawn = attack(drawing())
    full, hollow = (circles(drawn, style) for style in ("full", "hollow"))
    assert len(full) == len(hollow) == len(STRENGTHS)
    down, up = ([float(circle.get("cy")) for circle in marks] for marks in (full, hollow))
    assert down == sorted(down)  # y grows downwards
    assert up == sorted(up, reverse=True)
    assert {"Split-point layers (ours)", "strength of the attack", "0.004"} <= set(words(drawn))


def test_scores_of_every_sign_and_missing_ones_are_drawn():
    values = Attack((0.0, 0.2, 0.4), accuracy=(0.9, 0.5, 0.1), epistemic=(-400.0, nan, -100.0))
    drawn = attack(drawing(attack=values))
    assert len(circles(drawn, "hollow")) == 2
    assert "-400" in words(drawn)
    assert circles(attack(drawing(attack=Attack((), (), ()))), "hollow") == []
    constant = attack(drawing(attack=replace(values, epistemic=(1.0, 1.0, 1.0))))
    assert len(circles(constant, "hollow")) == 3


# Reliability


def test_both_curves_and_their_errors_are_shown():
    drawn = reliability(drawing())
    assert "ECE 0.0800 → 0.0200" in words(drawn)
    full, hollow = (circles(drawn, style) for style in ("full", "hollow"))
    assert len(full) == len(hollow) == 13  # two of fifteen bins are empty
    radii = [float(circle.get("r")) for circle in full]
    assert radii == sorted(radii)  # the surest bins hold most images
    assert radii[-1] > 2 * radii[0]


@pytest.mark.parametrize("method", ["splitpoint_paper_calibrated", "temperature_scaling", "splitpoint_layers"])
def test_methods_that_calibrate_are_drawn_also_where_nothing_changed(method):
    same = drawing(method, reliability=reliability_of(0.08))
    assert not same.recalibrated
    assert "<h4>Reliability</h4>" in drawings("images", [same])
    assert "unchanged, ECE 0.0800" in words(reliability(same))
    assert "unchanged" not in reliability(drawing(method))


@pytest.mark.parametrize("method", ["softmax", "energy", "splitpoint_paper", "splitpoint"])
def test_methods_that_do_not_calibrate_have_no_reliability_diagram(method):
    assert "<h4>Reliability</h4>" not in drawings("images", [drawing(method, reliability=reliability_of(0.08))])


# Histograms


def test_the_axis_ends_where_999_in_a_thousand_scores_do():
    # a bin with 0.1% of both together is folded into its neighbour, one with more is kept
    shown = Histogram(
        logarithm=False,
        edges=(-100, 0, 1, 2, 3, 9000),
        test=(0.002, 0.998, 0.0, 0.0, 0.0),
        ood=(0.0, 0.0, 0.4, 0.599, 0.001),
        threshold=1.0,
    )
    found = folded(shown)
    assert found.edges == (0, 1, 2, 3)
    assert found.test == pytest.approx((1.0, 0.0, 0.0))
    assert found.ood == pytest.approx((0.0, 0.4, 0.6))
    assert folded(replace(shown, test=(0.003, 0.997, 0.0, 0.0, 0.0))).edges == (-100, 0, 1, 2, 3)
    drawn = histogram(drawing(histogram=shown))
    assert "9000" not in words(drawn)
    assert "3" in words(drawn)


def test_histograms_of_one_full_bin_or_of_none_are_drawn():
    shown = Histogram(False, (0, 1, 2), test=(1.0, 0.0), ood=(1.0, 0.0), threshold=0.5)
    assert folded(shown).edges == (0, 1)
    empty = replace(shown, test=(0.0, 0.0), ood=(0.0, 0.0))
    assert folded(empty) == empty
    drawn = parsed(histogram(drawing(histogram=empty)))
    assert [path.get("class") for path in drawn.iter("path")] == ["test", "ood"]


def test_bins_of_a_run_end_at_the_quantiles_and_count_everything():
    test = torch.linspace(-1, 1, 1001)
    ood = torch.cat([torch.linspace(-1, 1, 998), torch.tensor([-1e6, 1e6, 2e6])])
    found = bins(test, ood, 0.9)
    assert (found.edges[0], found.edges[-1]) == pytest.approx((-1.0, 1.0), abs=0.01)
    assert (sum(found.test), sum(found.ood)) == pytest.approx((1, 1))
    assert found.ood[-1] > found.ood[-2]  # the extremes are in the last bin
    few = bins(torch.tensor([-1.0, 0.0]), torch.tensor([1e6]), 0.9)
    assert (few.edges[0], few.edges[-1]) == (-1.0, 1e6)


def test_captions_say_that_the_outermost_bins_hold_more():
    assert "the outermost bins also count what lies beyond" in drawings("images", [drawing("ddu")])


def test_bars_and_threshold_are_where_the_numbers_are():
    shown = Histogram(False, (0, 1, 2), test=(1.0, 0.0), ood=(0.5, 0.5), threshold=1.0)
    drawn = histogram(drawing(histogram=shown))
    (line,) = (line for line in parsed(drawn).iter("line") if line.get("class") == "threshold")
    assert float(line.get("x1")) == (gallery.HISTOGRAM_FRAME.left + gallery.HISTOGRAM_FRAME.right) / 2
    assert "about 0.5 in the middle" in drawn
    assert {"0", "1", "2"} <= set(words(drawn))


def test_a_threshold_out_of_the_range_is_not_drawn():
    shown = Histogram(True, (0, 1), test=(1.0,), ood=(1.0,), threshold=2.0)
    assert 'class="threshold"' not in histogram(drawing(histogram=shown))
    assert "nan" not in histogram(drawing(histogram=replace(shown, threshold=nan)))


@pytest.mark.parametrize(
    ("edges", "wanted"),
    [
        ((-12.0, 2.0), ["1e-12", "1e-9", "1e-6", "1e-3", "1"]),
        ((-0.9, 0.5), ["0.2", "0.5", "1", "2"]),
        ((-4.5, -2.5), ["1e-4", "1e-3"]),
    ],
)
def test_logarithmic_axes_show_the_score_itself(edges, wanted):
    assert list(labels(Histogram(True, edges, (1.0,), (1.0,), 0.0)).values()) == wanted


# Thumbnails


class Images(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.images, self.wrong = [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs))
        self.wrong += tag == "li" and dict(attrs).get("class") == "wrong"


def test_wrong_answers_are_marked_in_words_and_only_where_one_is_right():
    images = tuple(Thumbnail(image_png(1), 1, predicted) for predicted in (1, 7))
    rows = Thumbnails("most doubted, test", False, images), Thumbnails("most doubted, elsewhere", True, images)
    drawn = thumbnails(drawing(thumbnails=rows))
    found = Images(drawn)
    assert [image["alt"] for image in found.images] == [
        "predicted 1, label 1",
        "predicted 7, label 1, wrong",
        "predicted 1, out of distribution",
        "predicted 7, out of distribution",
    ]
    assert found.wrong == 1
    assert "✕ 7, is 1" in drawn
    assert {(image["width"], image["class"]) for image in found.images} == {("56", "pixels")}


def one_image(side=28):
    return (Thumbnails("most doubted, test", False, (Thumbnail(image_png(1, side), 1, 1),)),)


def test_large_images_are_not_drawn_as_pixels():
    (image,) = Images(thumbnails(drawing(thumbnails=one_image(224)))).images
    assert "class" not in image


def test_drawings_without_images_have_no_figure_of_them():
    assert thumbnails(drawing()) == ""
    assert thumbnails(drawing(thumbnails=(Thumbnails("most doubted, test", False, ()),))) == ""


# All of a data set


def test_every_figure_of_every_data_set(image_results):
    drawn = drawings("images", gallery.read(image_results))
    kept = ("softmax", "splitpoint_paper", "splitpoint")
    assert drawn.count(" under attack. ") == len(PLACES) * len(METHODS)
    assert drawn.count(": accuracy against confidence, ") == len(PLACES) * (len(METHODS) - len(kept))
    assert drawn.count("; threshold ") == len(PLACES) * len(METHODS)
    assert drawn.count("<img ") == len(PLACES) * 48
    assert drawn.count('role="tab"') == drawn.count('role="tabpanel"') == len(PLACES)


def test_one_data_set_needs_no_tabs_and_figures_without_content_are_left_out():
    drawn = drawings("images", [drawing("softmax")])
    assert "role=" not in drawn.replace('role="img"', "")
    assert "Reliability" not in drawn


def test_images_of_any_method_are_shown_and_their_absence_is_told():
    drawn = drawings("images", [drawing("softmax"), drawing(thumbnails=one_image())])
    assert "By the epistemic score of Split-point layers (ours)" in drawn
    assert "None are stored" not in drawn
    none = drawings("images", [drawing("softmax"), drawing()])
    assert "<img" not in none
    assert "None are stored for these records." in none


def test_artefacts_come_in_the_order_of_the_page(tmp_path):
    for place, method in (("cifar10/vgg16", "softmax"), ("mnist/lenet", "splitpoint"), ("mnist/lenet", "softmax")):
        drawing(method, place).put(tmp_path)
    places = [(one.cell.dataset, one.cell.method) for one in gallery.read(tmp_path)]
    assert places == [("mnist", "softmax"), ("mnist", "splitpoint"), ("cifar10", "softmax")]


def test_kinds_are_drawn_where_they_belong(curve):
    both = [curve("laplace"), drawing("softmax")]
    assert gallery.drawn(gallery.ABOVE, "x", both) == curves("x", both[:1])
    assert gallery.drawn(gallery.BELOW, "x", both) == drawings("x", both[1:])
    assert gallery.drawn(gallery.BELOW, "x", both[:1]) == ""
    assert {*gallery.ABOVE, *gallery.BELOW} == {Curve, Drawing, MapDrawing}
