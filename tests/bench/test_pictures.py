"""The pictures of image experiments: nothing that judges is ever learned from, and attacks are what they claim."""

import numpy as np
import pytest
import torch
from torch import nn

from image_files import image_folder
from splitpoint.attacks import fgsm
from splitpoint.bench.pictures import STRENGTHS, Sweep, trial_of
from splitpoint.datasets import images


@pytest.fixture
def data(tmp_path, monkeypatch):
    return image_folder(tmp_path, monkeypatch)


def contents(part):
    return {picture.numpy().tobytes() for picture in part.pixels(range(len(part)))}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("number", [0, 3])
def test_training_calibration_test_and_outside_pictures_never_meet(data, trained, number):
    trial = trial_of("mnist", ("fashion_mnist", "notmnist"), number, trained=trained)
    parts = [contents(part) for part in (trial.train, trial.calibration, trial.test, trial.outside)]
    assert sum(map(len, parts)) == len(set().union(*parts))
    official = contents(images.load("mnist", "test")), contents(images.load("mnist", "train"))
    assert parts[2] <= official[0]
    assert parts[1] <= official[0 if trained else 1]


def test_a_network_from_elsewhere_leaves_halves_of_the_test_part(data):
    trial = trial_of("mnist", ("notmnist",), 0, trained=True)
    whole = images.load("mnist", "test")
    assert contents(trial.calibration) | contents(trial.test) == contents(whole)
    assert abs(len(trial.calibration) - len(trial.test)) <= 1
    assert len(trial.train) == len(images.load("mnist", "train"))


def test_trials_differ_and_a_trial_is_always_the_same(data):
    first, again, other = (trial_of("mnist", ("notmnist",), number) for number in (0, 0, 1))
    assert contents(first.calibration) == contents(again.calibration) != contents(other.calibration)


def test_pictures_of_other_sets_enter_in_equal_parts_and_in_the_shape_of_the_own(data):
    trial = trial_of("cifar10", ("mnist", "notmnist"), 0)
    assert trial.outside.shape == trial.test.shape == (3, 32, 32)
    counts = np.bincount(trial.outside.labels.numpy())
    assert len(set(counts.tolist())) == 1


# The attack


@pytest.fixture
def sweep(data):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    pictures = images.load("mnist", "test")
    return Sweep(pictures, network, torch.full((1, 1, 1), 0.5), batch_size=7)


def test_the_stream_holds_every_picture_at_every_strength(sweep):
    batches = list(sweep)
    parts = list(sweep.parts())
    assert len(batches) == len(parts)
    assert sum(map(len, batches)) == len(sweep) == sweep.count * len(STRENGTHS)
    assert [len(batch) for batch in batches] == [part.stop - part.start for _, part in parts]


def test_every_strength_is_the_attack_of_that_size(sweep):
    pictures, labels = next(iter(images.Batches(images.load("mnist", "test"), sweep.count)))
    for (strength, part), batch in zip(sweep.parts(), sweep, strict=True):
        expected = fgsm(sweep.network, pictures[part], labels[part], strength * 0.5)
        torch.testing.assert_close(batch, expected)


def test_strength_zero_is_the_picture_itself(sweep):
    assert STRENGTHS[0] == 0
    first = next(iter(sweep))
    assert torch.equal(first, images.load("mnist", "test").pixels(range(7)).float() / 255)


def test_recorded_rows_are_cut_as_the_stream_is(sweep):
    rows = torch.cat([batch.flatten(1) for batch in sweep])
    for batch, piece in zip(sweep, sweep.slices(rows), strict=True):
        assert torch.equal(batch.flatten(1), piece)
