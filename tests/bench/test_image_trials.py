"""The images of a trial: nothing that tests is ever learned from, and attacks are what they claim."""

import numpy as np
import pytest
import torch
from torch import nn

from image_files import image_folder
from splitpoint.attacks import fgsm
from splitpoint.bench.image_trials import CURVE, STRENGTHS, TABLE_STRENGTH, Sweep, image_trial, under_attack
from splitpoint.datasets import images
from splitpoint.prediction import ClassificationPrediction


@pytest.fixture
def data(tmp_path, monkeypatch):
    return image_folder(tmp_path, monkeypatch)


def contents(part):
    return {image.numpy().tobytes() for image in part.pixels(range(len(part)))}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("number", [0, 3])
def test_training_calibration_test_and_ood_images_never_meet(data, trained, number):
    trial = image_trial("mnist", ("fashion_mnist", "notmnist"), number, trained=trained)
    parts = [contents(part) for part in (trial.train, trial.calibration, trial.test, trial.ood)]
    assert sum(map(len, parts)) == len(set().union(*parts))
    official = contents(images.load("mnist", "test")), contents(images.load("mnist", "train"))
    assert parts[2] <= official[0]
    assert parts[1] <= official[0 if trained else 1]


def test_a_network_that_others_trained_leaves_halves_of_the_test_part(data):
    trial = image_trial("mnist", ("notmnist",), 0, trained=True)
    whole = images.load("mnist", "test")
    assert contents(trial.calibration) | contents(trial.test) == contents(whole)
    assert abs(len(trial.calibration) - len(trial.test)) <= 1
    assert len(trial.train) == len(images.load("mnist", "train"))


def test_trials_differ_and_a_trial_is_always_the_same(data):
    first, again, other = (image_trial("mnist", ("notmnist",), number) for number in (0, 0, 1))
    assert contents(first.calibration) == contents(again.calibration) != contents(other.calibration)


def test_images_of_other_sets_enter_in_equal_parts_and_in_the_shape_of_the_own(data):
    trial = image_trial("cifar10", ("mnist", "notmnist"), 0)
    assert trial.ood.shape == trial.test.shape == (3, 32, 32)
    counts = np.bincount(trial.ood.labels.numpy())
    assert len(set(counts.tolist())) == 1


# The attack


@pytest.fixture
def sweep(data):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    return Sweep(images.load("mnist", "test"), network, torch.full((1, 1, 1), 0.5), batch_size=7)


def test_the_stream_holds_every_image_at_every_strength(sweep):
    batches = list(sweep)
    parts = list(sweep.parts())
    assert len(batches) == len(parts)
    assert sum(map(len, batches)) == len(sweep) == 30 * len(STRENGTHS)
    assert [len(batch) for batch in batches] == [part.stop - part.start for _, part in parts]


def test_every_strength_is_the_attack_of_that_size(sweep):
    pixels, labels = next(iter(images.Batches(images.load("mnist", "test"), 30)))
    for (strength, part), batch in zip(sweep.parts(), sweep, strict=True):
        expected = fgsm(sweep.network, pixels[part], labels[part], strength * 0.5)
        torch.testing.assert_close(batch, expected)


def test_strength_zero_is_the_image_itself(sweep):
    assert STRENGTHS[0] == 0
    first = next(iter(sweep))
    assert torch.equal(first, images.load("mnist", "test").pixels(range(7)).float() / 255)


# What a method predicts under attack


def doubting(rows):
    """A method that says class 0 above 0.5 and doubts by the value itself."""
    probs = torch.tensor([[float(v > 0.5), float(v <= 0.5)] for v in rows[:, 0]])
    entropy, score = torch.zeros(len(rows)), rows[:, 0].clone()
    scores = {"aleatoric": entropy, "epistemic": score, "total": score}
    return ClassificationPrediction(probs=probs, base_probs=probs, label=probs.argmax(1), reference=None, **scores)


class TwoBatches:
    strengths = STRENGTHS
    labels = torch.tensor([0, 0, 0, 1])

    def parts(self):
        for start in (0, 2):
            for strength in self.strengths:
                yield strength, slice(start, start + 2)


def test_accuracy_and_doubt_along_the_curve_from_a_stream():
    stream = [torch.full((2, 1), 1.0 - strength) for _ in range(2) for strength in STRENGTHS]
    found = under_attack(doubting, TwoBatches(), stream)
    assert found.curves["strength"] == list(CURVE)
    assert found.curves["accuracy"] == [0.75] * len(CURVE)
    assert found.curves["epistemic"] == pytest.approx([1 - strength for strength in CURVE])
    assert found.clean.epistemic.tolist() == [1] * 4
    assert found.attacked.epistemic.tolist() == pytest.approx([1 - TABLE_STRENGTH] * 4)


def test_curves_have_eleven_steps_and_the_table_one_of_its_own():
    assert pytest.approx([0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.24, 0.28, 0.32, 0.36, 0.4]) == CURVE
    assert TABLE_STRENGTH == 0.02
    assert set(STRENGTHS) == {*CURVE, TABLE_STRENGTH}
