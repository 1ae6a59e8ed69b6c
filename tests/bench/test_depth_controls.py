"""Controls: widths of a given shape, statistics of images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rooms import room_tensors, scene_folder
from splitpoint.bench.depth_controls import STATISTICS, WIDTHS, Widths, separations
from splitpoint.bench.depth_trials import depth_trial, few
from splitpoint.errors import DataError


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    scene_folder(tmp_path_factory.mktemp("data"), patch)
    yield depth_trial("nyu_depth", ["camvid", "kitti_road"], 0, size=(16, 32), images=60)
    patch.undo()


class Grey(nn.Module):
    """Five metres where an image is black, nothing where it is white."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, images):
        return self.scale * (1 - images.mean(1, keepdim=True))


def test_widths_have_their_shape_and_cover_the_calibration_images(trial):
    network = Grey()
    images, _ = room_tensors(3)
    constant, proportional = (Widths.of(network, shape, trial) for shape in WIDTHS.values())
    first, second = constant(images), proportional(images)
    assert (first.upper - first.lower).std() < 1e-5
    half = proportional.factor * second.mean
    torch.testing.assert_close(second.upper - second.lower, 2 * half)
    held, target = trial.calibration.tensors()
    for own in (constant(held), proportional(held)):
        inside = ((own.lower <= target) & (target <= own.upper))[~target.isnan()]
        assert 0.95 <= inside.float().mean() <= 1
    with pytest.raises(DataError, match="Expected at least 19 calibration groups"):
        Widths.of(network, torch.ones_like, replace(trial, calibration=few(trial.calibration, 18)))


def test_statistics_of_colours_by_hand():
    images = torch.zeros(2, 3, 2, 2)
    images[0, 2], images[1, 0] = 0.6, 0.3
    images[1, 1, 0, 0] = 0.9
    found = {name: statistic(images).tolist() for name, statistic in STATISTICS.items()}
    assert found["image_blue_minus_red"] == pytest.approx([0.6, -0.3])
    assert found["image_brightness"] == pytest.approx([0.2, 0.1 + 0.9 / 12])
    assert found["image_contrast"] == pytest.approx([0, np.std([0.4, 0.1, 0.1, 0.1], ddof=1)], abs=1e-6)


def test_what_a_statistic_separates_goes_by_the_names_of_scores(trial):
    found = separations(STATISTICS["image_blue_minus_red"], Grey(), trial, [0.0, 0.05])
    assert found["auroc_ood_camvid"] == found["auroc_ood_kitti_road"] == found["auroc_ood"] == 1
    assert 0.3 < found["auroc_adversarial"] < 0.7
    assert "auroc_adversarial" not in separations(STATISTICS["image_contrast"], Grey(), trial, [0.0, 0.1])
