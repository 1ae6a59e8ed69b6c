"""What the image suites share: which rows are read, what a method sees, and which published figures can be compared."""

import pytest
import torch

from image_files import image_folder
from image_results import image_record
from splitpoint.bench import image_experiments
from splitpoint.bench.image_experiments import Base, obstacles, row_inputs, training_images
from splitpoint.bench.image_rows import Recorder
from splitpoint.bench.image_trials import image_trial
from splitpoint.bench.networks import NETWORKS, factory


@pytest.fixture
def trial(tmp_path, monkeypatch):
    image_folder(tmp_path, monkeypatch)
    return image_trial("mnist", ("notmnist",), 0)


def test_no_more_rows_than_fit_in_memory(trial, monkeypatch):
    assert training_images(trial) is trial.train
    monkeypatch.setattr(image_experiments, "MOST_ROWS", 20)
    few = training_images(trial)
    assert len(few) == 20
    assert few.digest() == training_images(trial).digest() != trial.train.digest()


def test_recorded_rows_are_cut_as_the_attacked_images_are(trial, tmp_path, monkeypatch):
    monkeypatch.setattr("splitpoint.bench.image_trials.MOST_IMAGES", 7)
    torch.manual_seed(0)
    network = factory("lenet", 10, (1, 28, 28))().eval()
    inputs = row_inputs(Base(network, 0.0, Recorder(network, NETWORKS["lenet"].stages, tmp_path)), trial)
    images = list(inputs.sweep)
    assert [len(rows) for rows in inputs.stream] == [len(batch) for batch in images]
    for rows, batch in zip(inputs.stream, images, strict=True):
        torch.testing.assert_close(rows.logits(), network(batch), rtol=1e-4, atol=1e-4)


# Published figures


def reasons(place, protocol="short", **settings):
    record = image_record(place, "splitpoint_paper", {}, protocol=protocol)
    record.settings.clear()
    record.settings.update(settings)
    return obstacles(record)


def test_a_network_of_the_paper_answers_the_published_question():
    assert reasons("cifar10/vgg16", "paper") == ()
    assert reasons("cifar100/wide_resnet", "paper", epochs=350, ood="tiny_imagenet + svhn") == ()


def test_smaller_and_other_networks_do_not():
    smaller, fewer = reasons("cifar10/vgg16_small")
    assert smaller == "the network is smaller than the published one"
    assert fewer == "the network is trained for fewer epochs than the published one"
    assert reasons("cifar10/resnet18", "paper") == ("the network is another than the published one",)
    assert reasons("cifar10/vgg16", "paper", epochs=20) == (fewer,)


def test_networks_that_come_trained_use_test_images_for_calibration():
    half = "half of the published test images serve calibration"
    assert reasons("imagenet/torchvision_vgg16") == (half,)
    assert reasons("cifar10/resnet20_published") == ("the network is smaller than the published one", half)
    assert reasons("cifar10/of_my_own", ood="svhn + tiny_imagenet") == (half,)
    assert reasons("imagenet/vgg16", "paper", epochs=350) == ("the published network was trained elsewhere",)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ("tiny_imagenet", "Tiny ImageNet alone in place of SVHN + Tiny ImageNet is out of distribution"),
        ("mnist + svhn", "MNIST + SVHN in place of SVHN + Tiny ImageNet is out of distribution"),
        ("my_set", "my set in place of SVHN + Tiny ImageNet is out of distribution"),
    ],
)
def test_other_sets_out_of_distribution_are_another_question(sets, expected):
    assert reasons("cifar10/vgg16", "paper", epochs=350, ood=sets) == (expected,)
