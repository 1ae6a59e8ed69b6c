"""What is asked of a method on the scenes of a trial, with a method that can be worked out by hand."""

import math

import pytest
import torch
from torch import nn

from rooms import scene_folder
from splitpoint.bench.depth_evidence import Pixels, coverage_of_images, image_scores, judged
from splitpoint.bench.depth_trials import ATTACKED, depth_trial, few, sweep
from splitpoint.prediction import RegressionPrediction

STRENGTHS = (0.0, 0.05, 0.2)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    scene_folder(tmp_path_factory.mktemp("data"), patch)
    yield depth_trial("nyu_depth", ["camvid", "kitti_road"], 0, size=(16, 32))
    patch.undo()


class Brightness(nn.Module):
    """Depth as the logarithm of how dark a pixel is."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(-6.0))

    def forward(self, images):
        return self.scale * images.mean(1, keepdim=True).clamp(min=0.02).log()


def predict(images):
    with torch.no_grad():
        mean = Brightness()(images)
    blue = (images[:, 2:] - images[:, :1]).clamp(min=0)
    bounds = {"lowers": (mean - 1)[..., None], "uppers": (mean + 1)[..., None]}
    return RegressionPrediction(blue, blue, blue, None, mean=mean, levels=(0.9,), sds=blue, **bounds)


def test_parts_of_a_trial_do_not_share_scenes(trial):
    rows = [set(part.rows.tolist()) for part in (*trial.parts, trial.calibration, trial.test)]
    assert sum(map(len, rows)) == len(set().union(*rows)) == 360
    groups = [set(part.groups.tolist()) for part in (*trial.parts, trial.calibration)]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert (len(trial.test), sum(map(len, rows[:3]))) == (60, 300)


def test_trials_differ_and_come_again(trial):
    again, other = (depth_trial("nyu_depth", ["camvid"], number, size=(16, 32)) for number in (0, 1))
    assert again.train.digest() == trial.train.digest() != other.train.digest()
    assert set(again.ood) == {"camvid"}
    inverse = depth_trial("nyu_depth", ["camvid"], 0, size=(16, 32), inverse=True)
    assert inverse.test.targets([0]).nan_to_num().max() <= 1
    limited = depth_trial("nyu_depth", ["camvid"], 0, size=(16, 32), images=7)
    assert [len(part) for part in (limited.train, limited.test, limited.ood["camvid"])] == [7, 7, 7]


def test_few_are_spread_evenly(trial):
    assert few(trial.test, 3).rows.tolist() == trial.test.rows[[0, 29, 59]].tolist()
    assert few(trial.test, None) is few(trial.test, 99) is trial.test


def test_an_attack_moves_every_pixel_that_counts_by_its_strength_and_raises_the_error(trial):
    found = list(sweep(few(trial.test, 5), Brightness(), STRENGTHS))
    assert [strength for strength, *_ in found] == list(STRENGTHS)
    clean, weak, _ = (images for _, images, _ in found)
    known = ~found[0].target.isnan().expand_as(clean)
    steps = (weak - clean).abs()
    inside = known & (clean > 0.06) & (clean < 0.94)
    torch.testing.assert_close(steps[inside], torch.full_like(steps[inside], 0.05))
    assert min(float(images.min()) for _, images, _ in found) >= 0
    assert max(float(images.max()) for _, images, _ in found) <= 1
    errors = [float((predict(images).mean - target).square().nanmean()) for _, images, target in found]
    assert errors == sorted(errors)


def test_a_method_is_judged_on_pixels_images_and_attacks(trial):
    said = judged(predict, Brightness(), trial, STRENGTHS)
    evidence = said.evidence
    images, target = trial.test.tensors()
    known = ~target.isnan()
    assert len(evidence.target) == int(known.sum())
    assert evidence.prediction.mean.sum() == pytest.approx(float(predict(images).mean[known].sum()), rel=1e-4)
    inside = (predict(images).mean - target).abs() <= 1
    by_hand = [float(own[seen].float().mean()) for own, seen in zip(inside, known, strict=True)]
    assert evidence.coverage.tolist() == pytest.approx(by_hand)
    assert len(evidence.known) == 60
    assert set(said.ood) == {"camvid", "kitti_road"}
    assert len(evidence.ood) == 22
    assert evidence.ood.support.min() > evidence.known.support.max(), "blue skies, and no blue room"
    assert len(evidence.adversarial) == min(ATTACKED, 60)
    assert evidence.attack["rmse"] == sorted(evidence.attack["rmse"])
    assert len(evidence.attack["sds"]) == len(STRENGTHS)
    assert said.seconds_per_image > 0


def test_a_strength_that_is_not_asked_for_leaves_the_table_empty(trial):
    evidence = judged(predict, Brightness(), trial, (0.0, 0.1)).evidence
    assert evidence.adversarial is None
    assert evidence.attack["strength"] == [0.0, 0.1]


def test_pixels_without_a_depth_are_left_out_and_many_are_drawn_evenly():
    target = torch.rand(3, 1, 8, 8)
    target[0] = math.nan
    target[1, :, :4] = math.nan
    images = torch.rand(3, 3, 8, 8)
    whole, some = Pixels(64), Pixels(20)
    for pixels in (whole, some):
        pixels.add(predict(images), target)
    assert [len(part.targets[0]) for part in (whole, some)] == [32 + 64, 40]
    assert torch.equal(whole.parts[0].mean, predict(images).mean[~target.isnan()])
    assert whole.parts[0].lowers.shape == (96, 1)


def test_images_without_a_depth_have_no_coverage():
    target = torch.full((2, 1, 4, 4), math.nan)
    target[1] = predict(torch.full((2, 3, 4, 4), 0.5)).mean[1] + torch.tensor([0.0, 0.5, 2.0, -2.0])
    found = coverage_of_images(predict(torch.full((2, 3, 4, 4), 0.5)), target)
    assert math.isnan(found[0])
    assert found[1] == 0.5


def test_scores_of_images_are_means_of_maps():
    images = torch.rand(2, 3, 4, 4)
    found = image_scores(predict(images))
    assert found.support.tolist() == pytest.approx(predict(images).epistemic.mean((1, 2, 3)).tolist())
