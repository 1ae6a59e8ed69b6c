"""Published figures: as printed in the paper, under the names of the records."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from image_results import image_record
from splitpoint.bench.record import Cell
from splitpoint.datasets.images import IMAGE_SETS
from splitpoint.report.facts import obstacles
from splitpoint.report.published import figures, find, normalised


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
        "tab:Monocular-Depth-result": 42,
        "tab:LUMA-results": 104,
    }


def published(place, noise, method, variant, metric):
    """The figure of a cell; `place` is a data set, or one with a network such as ``cifar10/vgg16``."""
    dataset, _, network = place.partition("/")
    return find(Cell("any", "any", noise, dataset, method, variant, network), metric)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("boston", "clean", "mc_dropout", "", "rmse"), "3.99 ± 0.17"),
        (("power", "log_normal", "mc_dropout", "", "rmse"), "4.83 ± 0.03"),
        (("concrete", "clean", "splitpoint_paper", "", "rmse"), "7.09 ± 0.14"),
        (("naval", "clean", "splitpoint_paper", "", "spearman_total"), "0.58 ± 0.02"),
        (("naval", "clean", "splitpoint_paper", "hidden_layers=1", "spearman_total"), "0.70 ± 0.01"),
        (("concrete", "clean", "splitpoint_paper", "train_fraction=0.2", "rmse"), "7.13 ± 0.13"),
        (("cubic", "gaussian", "evidential_regression", "", "piece_authors"), "0.01"),
        (("cifar10/vgg16", "clean", "oc", "", "accuracy"), "0.9362 ± 0.0003"),
        (("cifar10/vgg16", "clean", "ddu", "", "auroc_error_epistemic"), "0.9182 ± 0.0010"),
        (("cifar100/wide_resnet", "clean", "laplace", "", "ece"), "0.7187 ± 0.0007"),
        (
            ("imagenet/wide_resnet", "clean", "splitpoint_paper_calibrated", "", "auroc_error_epistemic"),
            "0.7338 ± 0.0002",
        ),
        (("cifar10/vgg16", "clean", "splitpoint_paper_calibrated", "hidden_layers=3", "ece"), "0.0323 ± 0.0007"),
        (("nyu_depth/unet", "clean", "deep_ensemble", "", "rmse_authors"), "0.01 ± 0.00"),
        (("nyu_depth/unet", "clean", "splitpoint_paper_calibrated", "", "auroc_ood"), "0.98 ± 0.01"),
        (("luma/image", "clean", "mc_dropout", "", "accuracy"), "0.3269"),
        (("luma/all", "clean", "rcml", "", "auroc_ood"), "0.91"),
        (("luma/text", "label", "splitpoint_paper_calibrated", "", "epistemic_change_pct"), "186.45"),
    ],
)
def test_figures_are_those_of_the_paper(key, text):
    assert published(*key).text == text


def test_parts_of_a_figure():
    found = published("boston", "clean", "mc_dropout", "", "rmse")
    assert (found.mean, found.stderr, found.unit, found.table) == (3.99, 0.17, 0.01, "tab:UCI-results1")
    assert math.isnan(published("cubic", "trimodal", "deep_ensemble", "", "rmse").stderr)


def test_names_of_the_records_are_used():
    metrics = {key[-1] for key in figures()}
    regression = {"rmse", "rmse_authors", "winkler", "piece_authors", "piece_plus", "piece_minus", "spearman_total"}
    changes = {"aleatoric_change_pct", "epistemic_change_pct"}  # which reports work out from two records
    classes = {"accuracy", "ece", "auroc_error_epistemic", "auroc_adversarial", "auroc_ood"}
    assert metrics == regression | classes | changes
    assert published("boston", "clean", "splitpoint_paper", "", "piece") is None
    assert published("boston", "clean", "splitpoint_paper_calibrated", "", "winkler") is not None


def test_variants_are_found_however_they_are_written():
    key = ("concrete", "clean", "splitpoint_paper")
    usual = published(*key, "train_fraction=1.0", "winkler")
    assert published(*key, "training=stagewise", "winkler") is usual
    assert published(*key, "train_fraction=1.0;training=stagewise", "winkler") is usual
    assert published(*key, "training=joint", "winkler") is not usual
    assert normalised("") == ""
    assert normalised(" b=2; a=1 ") == "a=1;b=2"


def test_percents_became_fractions_with_two_more_digits():
    images = [figure for key, figure in figures().items() if key[0].partition("/")[0] in IMAGE_SETS]
    assert len(images) == 160 + 136 + 200 + 60
    assert all(0 <= figure.mean < 1 and figure.unit == 1e-4 and figure.stderr < 0.1 for figure in images)


@pytest.mark.parametrize(
    ("network", "counterpart"),
    [
        ("cifar10/vgg16_small", "cifar10/vgg16"),
        ("cifar10/resnet20_published", "cifar10/wide_resnet"),
        ("cifar100/wide_resnet_small", "cifar100/wide_resnet"),
        ("cifar10/resnet18", "cifar10/wide_resnet"),
        ("imagenet/torchvision_vgg16", "imagenet/vgg16"),
        ("imagenet/torchvision_wide_resnet50_2", "imagenet/wide_resnet"),
    ],
)
def test_networks_stand_beside_the_published_one_of_their_family_without_a_verdict(network, counterpart):
    key = ("clean", "ddu", "", "auroc_ood")
    assert published(network, *key) is published(counterpart, *key)
    assert published(network, *key) is not None
    for protocol in ("short", "paper"):
        assert obstacles(replace(image_record(network, "ddu", {}, protocol=protocol), settings={}))


@pytest.mark.parametrize("variant", ["calib_fraction=0.1;uq_train_set=train", "uq_train_set=train;calib_fraction=0.1"])
def test_image_ablations_are_found_however_they_are_written(variant):
    assert published("cifar10/vgg16", "clean", "splitpoint_paper", variant, "accuracy").text == "0.9366 ± 0.0005"
    joint = published("cifar10/vgg16", "clean", "splitpoint_paper", "training=joint", "auroc_adversarial")
    assert joint.table == "tab:training-cls-as"
    usual = published(
        "cifar10/vgg16", "clean", "splitpoint_paper", "training=stagewise;train_fraction=1.0", "auroc_adversarial"
    )
    assert usual.text == "0.6836 ± 0.0017"


def test_networks_without_a_published_relative_have_no_figure():
    assert published("mnist/lenet", "clean", "ddu", "", "accuracy") is None
