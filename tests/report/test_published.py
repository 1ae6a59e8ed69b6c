"""Published figures: as printed in the paper, under the names of the records."""

import math
from collections import Counter

import pytest

from splitpoint.report.published import comes_trained, figures, find, normalised, obstacles


def test_every_table_is_whole():
    tables = Counter(figure.table for figure in figures().values())
    assert tables == {
        "tab:UCI-results1": 360,
        "tab:UCI-results2": 360,
        "tab:UCI-results3": 360,
        "tab:cubic-results": 40,
        "tab:training-reg-as": 216,
        "tab:model-reg-as": 90,
        "tab:CLS-results1": 160,
        "tab:training-cls-as": 136,
        "tab:calib-cls-as": 200,
        "tab:model-cls-as": 60,
    }


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("boston", "clean", "mc_dropout", "", "rmse"), "3.99 ± 0.17"),
        (("power", "log_normal", "mc_dropout", "", "rmse"), "4.83 ± 0.03"),
        (("concrete", "clean", "splitpoint", "", "rmse"), "7.09 ± 0.14"),
        (("naval", "clean", "splitpoint", "", "spearman_total"), "0.58 ± 0.02"),
        (("naval", "clean", "splitpoint", "hidden_layers=1", "spearman_total"), "0.70 ± 0.01"),
        (("concrete", "clean", "splitpoint", "train_fraction=0.2", "rmse"), "7.13 ± 0.13"),
        (("cubic", "gaussian", "evidential_regression", "", "piece_authors"), "0.01"),
        (("cifar10/vgg16", "clean", "oc", "", "accuracy"), "0.9362 ± 0.0003"),
        (("cifar10/vgg16", "clean", "ddu", "", "auroc_error_epistemic"), "0.9182 ± 0.0010"),
        (("cifar100/wide_resnet", "clean", "laplace", "", "ece"), "0.7187 ± 0.0007"),
        (("imagenet/wide_resnet", "clean", "splitpoint_calibrated", "", "auroc_error_epistemic"), "0.7338 ± 0.0002"),
        (("cifar10/vgg16", "clean", "splitpoint_calibrated", "hidden_layers=3", "ece"), "0.0323 ± 0.0007"),
    ],
)
def test_figures_are_those_of_the_paper(key, text):
    assert find(*key).text == text


def test_parts_of_a_figure():
    found = find("boston", "clean", "mc_dropout", "", "rmse")
    assert (found.mean, found.stderr, found.unit, found.table) == (3.99, 0.17, 0.01, "tab:UCI-results1")
    assert math.isnan(find("cubic", "trimodal", "deep_ensemble", "", "rmse").stderr)


def test_names_of_the_records_are_used():
    metrics = {key[-1] for key in figures()}
    regression = {"rmse", "winkler", "piece_authors", "piece_plus", "piece_minus", "spearman_total"}
    assert metrics == regression | {"accuracy", "ece", "auroc_error_epistemic", "auroc_adv", "auroc_ood"}
    assert find("boston", "clean", "splitpoint", "", "piece") is None
    assert find("boston", "clean", "splitpoint_calibrated", "", "winkler") is not None


def test_variants_are_found_however_they_are_written():
    key = ("concrete", "clean", "splitpoint")
    usual = find(*key, "train_fraction=1.0", "winkler")
    assert find(*key, "training=stagewise", "winkler") is usual
    assert find(*key, "train_fraction=1.0;training=stagewise", "winkler") is usual
    assert find(*key, "training=joint", "winkler") is not usual
    assert normalised("") == ""
    assert normalised(" b=2; a=1 ") == "a=1;b=2"


def test_percents_became_fractions_with_two_more_digits():
    images = [figure for key, figure in figures().items() if "/" in key[0]]
    assert len(images) == 160 + 136 + 200 + 60
    assert all(0 <= figure.mean < 1 and figure.unit == 1e-4 and figure.stderr < 0.1 for figure in images)


@pytest.mark.parametrize(
    ("network", "published"),
    [
        ("cifar10/vgg16_small", "cifar10/vgg16"),
        ("cifar10/resnet20_published", "cifar10/wide_resnet"),
        ("cifar100/wide_resnet_small", "cifar100/wide_resnet"),
        ("cifar10/resnet18", "cifar10/wide_resnet"),
        ("imagenet/torchvision_vgg16", "imagenet/vgg16"),
        ("imagenet/torchvision_wide_resnet50_2", "imagenet/wide_resnet"),
    ],
)
def test_networks_stand_beside_the_published_one_of_their_family_without_a_verdict(network, published):
    key = ("clean", "ddu", "", "auroc_ood")
    assert find(network, *key) is find(published, *key)
    assert find(network, *key) is not None
    for protocol in ("short", "paper"):
        assert obstacles(protocol, "clean", network)


@pytest.mark.parametrize("variant", ["calib_fraction=0.1;uq_train_set=train", "uq_train_set=train;calib_fraction=0.1"])
def test_image_ablations_are_found_however_they_are_written(variant):
    assert find("cifar10/vgg16", "clean", "splitpoint", variant, "accuracy").text == "0.9366 ± 0.0005"
    joint = find("cifar10/vgg16", "clean", "splitpoint", "training=joint", "auroc_adv")
    assert joint.table == "tab:training-cls-as"
    usual = find("cifar10/vgg16", "clean", "splitpoint", "training=stagewise;train_fraction=1.0", "auroc_adv")
    assert usual.text == "0.6836 ± 0.0017"


def test_networks_without_a_published_relative_have_no_figure():
    assert find("mnist/lenet", "clean", "ddu", "", "accuracy") is None


SMALLER, ANOTHER = (f"the network is {kind} than the published one" for kind in ("smaller", "another"))
SHORT = "the network is trained for fewer epochs than the published one"
HALF = "half of the published test pictures serve calibration"
ALONE = "Tiny ImageNet alone in place of SVHN + Tiny ImageNet is out of distribution"


@pytest.mark.parametrize(
    ("protocol", "dataset", "settings", "wanted"),
    [
        ("paper", "cifar10/vgg16", {}, ()),
        ("paper", "cifar10/vgg16", {"epochs": 350, "outside": "tiny_imagenet + svhn"}, ()),
        ("short", "cifar10/vgg16", {}, (SHORT,)),
        ("paper", "cifar10/vgg16_small", {}, (SMALLER,)),
        ("paper", "cifar10/resnet18", {}, (ANOTHER,)),
        ("short", "cifar10/resnet18", {"epochs": 12}, (ANOTHER, SHORT)),
        ("short", "cifar10/vgg16_small", {"epochs": 12, "outside": "tiny_imagenet"}, (SMALLER, SHORT, ALONE)),
        ("short", "cifar10/resnet20_published", {"outside": "tiny_imagenet"}, (SMALLER, ALONE, HALF)),
        ("short", "cifar10/resnet32_published", {}, (SMALLER, HALF)),
        ("short", "imagenet/torchvision_vgg16", {"outside": "imagenet_o"}, (HALF,)),
        ("short", "cifar10/vgg16", {"outside": "svhn + tiny_imagenet"}, (HALF,)),  # no epochs: comes trained
        ("paper", "imagenet/vgg16", {"epochs": 350}, ("the published network was trained elsewhere",)),
    ],
)
def test_all_obstacles_of_image_networks_are_told(protocol, dataset, settings, wanted):
    assert obstacles(protocol, "clean", dataset, settings) == wanted


def test_other_sets_out_of_distribution_are_named():
    (said,) = obstacles("paper", "clean", "cifar10/vgg16", {"epochs": 350, "outside": "svhn + mnist"})
    assert said == "SVHN + MNIST in place of SVHN + Tiny ImageNet is out of distribution"


@pytest.mark.parametrize(
    ("dataset", "settings", "wanted"),
    [
        ("imagenet/torchvision_vgg16", {"epochs": 1}, True),
        ("cifar10/my_net", {"outside": "svhn"}, True),
        ("cifar10/my_net", {"epochs": 3}, False),
        ("cifar10/my_net", {}, False),  # nothing is known
        ("boston", {"rate": 0.1}, False),
    ],
)
def test_networks_that_come_trained(dataset, settings, wanted):
    assert comes_trained(dataset, settings) is wanted


def test_obstacles_to_a_comparison():
    assert [reason.split()[-1] for reason in obstacles("paper", "trimodal", "energy", {"epochs": 40})] == [
        "400",
        "states",
        "target",
    ]
    assert obstacles("authors", "trimodal", "energy") == ()
    assert obstacles("paper", "trimodal", "cubic") == ()
    assert obstacles("paper", "clean", "boston") == ()
