"""Intervals on maps that are conformalised image by image."""

import pytest
import torch

from rooms import scene_folder
from splitpoint.bench.depth_conformal import image_factor, scaled
from splitpoint.bench.depth_trials import depth_trial
from splitpoint.prediction import RegressionPrediction


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    scene_folder(tmp_path_factory.mktemp("data"), patch)
    yield depth_trial("nyu_depth", ["camvid"], 0, size=(16, 32), images=60).calibration
    patch.undo()


def about_two_metres(below, above):
    """Says 2 m of every pixel, with the same interval of two levels everywhere."""

    def predict(images):
        mean = torch.full_like(images[:, :1], 2.0)
        lowers = torch.stack([mean - below / 2, mean - below], -1)
        uppers = torch.stack([mean + above / 2, mean + above], -1)
        one = torch.ones_like(mean)
        return RegressionPrediction(one, one, one, None, mean=mean, lowers=lowers, uppers=uppers, levels=(0.8, 0.9))

    return predict


def test_the_middle_of_an_interval_stays_and_the_highest_level_is_scaled():
    found = scaled(about_two_metres(1.0, 3.0)(torch.zeros(2, 3, 4, 4)), 0.5)
    assert found.levels == (0.9,)
    assert (found.lower.unique().item(), found.upper.unique().item()) == (2.0, 4.0)  # 3 m, by half of 2 m


def test_intervals_that_hold_too_little_or_too_much_come_to_the_same(rooms):
    narrow, wide = about_two_metres(0.1, 0.1), about_two_metres(9.0, 9.0)
    factors = image_factor(narrow, rooms), image_factor(wide, rooms)
    assert factors[0] == pytest.approx(90 * factors[1], rel=1e-5)
    assert factors[0] > 1
    images, target = rooms.tensors()
    found = scaled(narrow(images), factors[0])
    inside = ((found.lower <= target) & (target <= found.upper))[~target.isnan()]
    assert 0.9 <= inside.double().mean() < 1
    again = image_factor(lambda images: scaled(narrow(images), factors[0]), rooms)
    assert again == pytest.approx(1, rel=1e-5)
