"""Figures of methods on maps: curves, bins, maps with their bars, and what is said of colours alone."""

import math
import re
from dataclasses import replace

import pytest
import torch

from splitpoint.bench.drawings import png
from splitpoint.bench.map_artefacts import Coverages, MapDrawing, MapRow, Sparsified, Sweep
from splitpoint.bench.map_drawings import colours
from splitpoint.bench.record import Cell, Record
from splitpoint.errors import DataError
from splitpoint.report import controls, map_gallery
from splitpoint.report.map_gallery import coverages, map_drawings, maps, normalised, sparsified, sweep
from splitpoint.report.page import page
from splitpoint.report.sections import sections

SWEEP = Sweep((0.0, 0.1, 0.2), (1.0, 2.0, 3.0), (0.5, 0.75, 0.7))
CURVE = Sparsified((0.0, 0.5), (1.0, 0.8), (1.0, 0.4))
COVERAGES = Coverages((0.0, 0.5, 1.0), (0.25, 0.75))
MAP = png(torch.zeros(1, 4, 6, dtype=torch.uint8), colours())


def cell(method="splitpoint"):
    return Cell("depth", "short", "clean", "nyu_depth", method, "", "unet")


def drawing(method="splitpoint"):
    rows = (MapRow("prediction", "m", 0.5, 9.5, (MAP, MAP)), MapRow("flagged", "", math.nan, math.nan, (MAP, MAP)))
    return MapDrawing(cell(method), 0.95, SWEEP, CURVE, COVERAGES, ("clean", "CamVid"), rows)


def test_a_drawing_comes_back_from_its_file(tmp_path):
    first, second = drawing(), drawing("gaussian")
    for one in (first, second, first):
        one.put(tmp_path)
    found = MapDrawing.read(tmp_path)
    assert [one.cell.method for one in found] == ["splitpoint", "gaussian"]
    assert found[0].rows[0] == first.rows[0]
    assert (found[0].sweep, found[0].sparsified, found[0].coverages) == (SWEEP, CURVE, COVERAGES)
    assert math.isnan(found[0].rows[1].low)


def test_what_does_not_fit_is_no_drawing():
    with pytest.raises(DataError, match="Expected a map in each of the columns clean"):
        MapDrawing(cell(), 0.95, SWEEP, CURVE, COVERAGES, ("clean",), drawing().rows)
    with pytest.raises(DataError, match="base64 text of PNG files"):
        MapRow("prediction", "m", 0, 1, ("AAAA",))
    with pytest.raises(DataError, match="equally many numbers in the parts of an attack"):
        Sweep((0.0,), (1.0, 2.0), (0.0,))


def points(drawn, style):
    (path,) = re.findall(rf'<path d="([^"]*)" class="{style}"/>', drawn)
    return [tuple(map(float, pair.split())) for pair in re.split("[ML]", path.rstrip("Z"))[1:]]


def test_a_sweep_rises_on_both_axes():
    drawn = sweep("Ours", SWEEP)
    error, score = points(drawn, "ours"), points(drawn, "published")
    assert [y for _, y in error] == sorted((y for _, y in error), reverse=True)
    assert score[1][1] < score[2][1] < score[0][1], "the score is highest in the middle, and 0 where it begins"
    assert "strength 0.1: RMSE 2, mean score 0.75" in drawn


def test_scores_are_normalised():
    assert normalised([2.0, 4.0, 3.0]) == (0.0, 1.0, 0.5)
    assert normalised([1.0, 1.0]) == (0.0, 0.0)
    assert normalised([math.nan, 1.0, 3.0])[1:] == (0.0, 1.0)


def test_sparsification_lies_above_the_oracle():
    drawn = sparsified("Ours", CURVE)
    assert points(drawn, "ours")[1][1] < points(drawn, "published")[1][1], "smaller y is higher"


def test_coverages_say_how_many_images_are_badly_covered():
    drawn = coverages("Ours", COVERAGES, 0.95)
    assert len(re.findall('class="test"', drawn)) == 2
    assert "25% of them have at most 80% of their pixels inside" in drawn


def test_maps_have_bars_with_units_where_colours_are_numbers():
    drawn = maps("Ours", drawing())
    assert drawn.count("<img") == 4
    assert drawn.count('tabindex="0"') == 5, "every map can be reached, and the box that scrolls"
    assert "9 m" not in drawn
    assert "8 m" in drawn
    assert drawn.count("<svg") == 1, "flagged has no bar"
    assert 'alt="prediction, CamVid, Ours"' in drawn


def test_every_method_is_drawn_and_ids_differ():
    drawn = map_drawings("x", [drawing(), drawing("gaussian")])
    assert drawn.count("<table") == 2
    ids = re.findall(r' id="([^"]*)"', drawn)
    assert len(ids) == len(set(ids))
    for heading in ("Under attack", "Sparsification", "Coverage of single images", "Maps"):
        assert f"<h4>{heading}</h4>" in drawn
    assert map_gallery.MAPS.split(".")[0] in drawn


def test_a_method_without_maps_has_its_curves():
    drawn = map_drawings("x", [drawing(), replace(drawing("gaussian"), rows=())])
    assert drawn.count("<table") == 1
    assert drawn.count("Gaussian under attack") == 1


# Colours alone


def records(**means):
    return [
        Record(*cell(method)[:6], 0, (0,), 0, metrics={"auroc_ood": mean, "rmse": 1.0}, network="unet")
        for method, mean in means.items()
    ]


def test_methods_below_the_colours_are_not_named():
    found = sections(records(splitpoint=0.95, gaussian=0.6, image_blue_minus_red=0.9, image_contrast=0.2))
    (caption,) = controls.captions(found[0], found[0].tables[0])
    assert "image blue minus red tells the sets apart with an AUROC of 0.900" in caption
    assert caption.endswith("Above it: Split-point (ours).")
    assert "proved nothing" in page(records(splitpoint=0.6, image_blue_minus_red=0.9), found)


def test_a_statistic_that_is_smaller_separates_too():
    found = sections(records(splitpoint=0.95, image_contrast=0.02))
    (caption,) = controls.captions(found[0], found[0].tables[0])
    assert "image contrast tells the sets apart with an AUROC of 0.980" in caption
    assert caption.endswith("Above it: none.")


def test_nothing_is_said_without_controls():
    found = sections(records(splitpoint=0.95))
    assert controls.captions(found[0], found[0].tables[0]) == ()
