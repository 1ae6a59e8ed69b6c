"""What pages draw of methods on maps: colours that can be read back, bins, columns."""

import base64
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from splitpoint.bench.map_artefacts import COLOURS, MISSING
from splitpoint.bench.map_drawings import Shown, colours, coverages, map_rows, sparsified
from splitpoint.prediction import Reference, RegressionPrediction


def decoded(text):
    return np.array(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"))


def prediction(mean, score, reference=None):
    bounds = {"lowers": (mean - 1)[..., None], "uppers": (mean + 1)[..., None]}
    return RegressionPrediction(score, score, score, reference, mean=mean, levels=(0.9,), **bounds)


def test_colours_begin_and_end_where_they_say():
    found = colours()
    assert found.shape == (256, 3)
    assert tuple(found[0].tolist()) == COLOURS[0]
    assert tuple(found[254].tolist()) == COLOURS[-1]
    assert tuple(found[255].tolist()) == MISSING
    light = found[:255].double() @ torch.tensor([0.3, 0.6, 0.1], dtype=torch.float64)
    assert (light.diff() > -1).all(), "brighter is more"


def test_maps_show_their_numbers():
    target = torch.tensor([[[[1.0, math.nan], [5.0, 3.0]]]])
    mean = torch.tensor([[[[1.0, 2.0], [5.0, 4.0]]]])
    reference = Reference(torch.tensor([0.0, 1.0]), torch.tensor(0.5))
    shown = Shown("clean", torch.full((1, 3, 2, 2), 0.2), target, prediction(mean, mean / 5, reference))
    rows = {row.title: row for row in map_rows([shown], "m")}
    assert list(rows) == [
        *("input", "truth", "prediction", "error", "lower bound", "upper bound", "epistemic score", "flagged")
    ]
    assert {(row.low, row.high) for row in (rows["truth"], rows["prediction"], rows["upper bound"])} == {(1.0, 5.0)}
    assert (rows["truth"].unit, rows["error"].unit, rows["epistemic score"].unit) == ("m", "m", "")
    truth = decoded(rows["truth"].maps[0])
    assert [tuple(truth[place]) for place in ((0, 0), (0, 1), (1, 0))] == [COLOURS[0], MISSING, COLOURS[-1]]
    assert (decoded(rows["input"].maps[0]) == 51).all()
    assert (decoded(rows["flagged"].maps[0])[..., 0] > 0).tolist() == [[False, False], [True, True]]
    beyond = decoded(rows["upper bound"].maps[0])
    assert tuple(beyond[1, 0]) == COLOURS[-1], "numbers beyond the scale have its last colour"
    assert math.isnan(rows["flagged"].low)


def test_without_a_threshold_nothing_is_flagged():
    mean = torch.ones(1, 1, 2, 2)
    shown = Shown("clean", torch.zeros(1, 3, 2, 2), mean, prediction(mean, mean))
    assert "flagged" not in {row.title for row in map_rows([shown], "m")}


def test_coverages_leave_out_images_without_a_depth():
    found = coverages(torch.tensor([1.0, 0.97, 0.02, math.nan]))
    assert len(found.share) == 20
    assert found.share[-1] == pytest.approx(2 / 3)
    assert found.share[0] == pytest.approx(1 / 3)


def test_a_score_that_is_the_error_sparsifies_as_the_oracle():
    mean = torch.zeros(1000)
    target = torch.linspace(0, 4, 1000)
    flat = prediction(mean, target)
    found = sparsified(flat, target)
    assert len(found.removed) == 50
    assert found.error == pytest.approx(found.oracle)
    assert found.error[0] == 1
    assert found.error[-1] < 0.02
