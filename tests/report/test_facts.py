"""Titles, order and what the tables say of a record: read from the tables, also for ids that none of them knows."""

from dataclasses import replace

import pytest

from image_results import image_record
from splitpoint.bench.networks import comes_trained
from splitpoint.metrics import METRICS, Metric, metric, ordered
from splitpoint.report import facts
from splitpoint.report.facts import Problem, obstacles, ordered_problems

# Order


def test_problems_stand_in_the_order_of_the_tables():
    found = ordered_problems(
        [Problem("wine"), Problem("cifar10", "vgg16"), Problem("mnist", "lenet"), Problem("boston"), Problem("wine")]
    )
    assert [str(problem) for problem in found if problem.network] == ["mnist/lenet", "cifar10/vgg16"]
    assert [str(problem) for problem in found if not problem.network] == ["boston", "wine"]
    networks = ordered_problems(Problem("cifar10", name) for name in ("my_net", "resnet18", "vgg16_small", "vgg16"))
    assert [problem.network for problem in networks] == ["vgg16", "vgg16_small", "resnet18", "my_net"]


def test_methods_stand_in_the_order_of_their_table():
    found = facts.ordered(["my_method", "splitpoint", "splitpoint_paper", "softmax"])
    assert found == ("softmax", "splitpoint_paper", "splitpoint", "my_method")


def test_unknown_metrics_come_last_and_are_not_ranked():
    found = ordered(["zeta_score", "winkler", "alpha", "rmse"])
    assert [one.name for one in found] == ["rmse", "winkler", "alpha", "zeta_score"]
    assert metric("zeta_score") == Metric("zeta_score", None, "zeta score", "none")
    assert metric("zeta_score").preference == "not ranked"
    assert METRICS["picp"].preference == "closest to 0.95 is best"
    assert tuple(METRICS[name].sign for name in ("rmse", "spearman_total", "mpiw")) == ("↓", "↑", "")


# What stands in the way of a comparison

SMALLER, ANOTHER = (f"the network is {kind} than the published one" for kind in ("smaller", "another"))
SHORT = "the network is trained for fewer epochs than the published one"
HALF = "half of the published test images serve calibration"
ALONE = "Tiny ImageNet alone in place of SVHN + Tiny ImageNet is out of distribution"


@pytest.mark.parametrize(
    ("protocol", "place", "settings", "wanted"),
    [
        ("paper", "cifar10/vgg16", {}, ()),
        ("paper", "cifar10/vgg16", {"epochs": 350, "ood": "tiny_imagenet + svhn"}, ()),
        ("short", "cifar10/vgg16", {}, (SHORT,)),
        ("paper", "cifar10/vgg16_small", {}, (SMALLER,)),
        ("paper", "cifar10/resnet18", {}, (ANOTHER,)),
        ("short", "cifar10/resnet18", {"epochs": 12}, (ANOTHER, SHORT)),
        ("short", "cifar10/vgg16_small", {"epochs": 12, "ood": "tiny_imagenet"}, (SMALLER, SHORT, ALONE)),
        ("short", "cifar10/resnet20_published", {"ood": "tiny_imagenet"}, (SMALLER, ALONE, HALF)),
        ("short", "cifar10/resnet32_published", {}, (SMALLER, HALF)),
        ("short", "imagenet/torchvision_vgg16", {"ood": "imagenet_o"}, (HALF,)),
        ("short", "cifar10/vgg16", {"ood": "svhn + tiny_imagenet"}, (HALF,)),  # no epochs: comes trained
        ("paper", "imagenet/vgg16", {"epochs": 350}, ("the published network was trained elsewhere",)),
    ],
)
def test_all_obstacles_of_image_networks_are_told(protocol, place, settings, wanted):
    assert obstacles(replace(image_record(place, "ddu", {}, protocol=protocol), settings=settings)) == wanted


def test_other_sets_out_of_distribution_are_named():
    record = image_record("cifar10/vgg16", "ddu", {}, protocol="paper")
    (reason,) = obstacles(replace(record, settings={"epochs": 350, "ood": "svhn + mnist"}))
    assert reason == "SVHN + MNIST in place of SVHN + Tiny ImageNet is out of distribution"


def reasons(cell, protocol, noise, dataset, suite="uci", epochs=400):
    (record,) = cell(dataset, "laplace", {"rmse": [1.0]}, protocol=protocol, noise=noise, suite=suite)
    return obstacles(replace(record, settings={"epochs": epochs}))


def test_obstacles_to_a_comparison(cell):
    assert [reason.split()[-1] for reason in reasons(cell, "paper", "trimodal", "energy", epochs=40)] == [
        "400",
        "states",
        "target",
    ]
    assert reasons(cell, "authors", "trimodal", "energy") == ()
    assert reasons(cell, "paper", "trimodal", "cubic", suite="cubic", epochs=5000) == ()
    assert reasons(cell, "paper", "clean", "boston") == ()


def test_records_of_a_suite_that_is_not_known_are_not_compared(cell):
    assert reasons(cell, "authors", "clean", "boston", suite="mine") == ("the suite is not known here",)


@pytest.mark.parametrize(
    ("place", "settings", "wanted"),
    [
        ("imagenet/torchvision_vgg16", {"epochs": 1}, True),
        ("cifar10/resnet20_published", {}, True),
        ("cifar10/vgg16", {"epochs": 12}, False),
        ("cifar10/my_net", {"ood": "svhn"}, True),
        ("cifar10/my_net", {"epochs": 3}, False),
        ("cifar10/my_net", {}, False),  # nothing is known
        ("boston", {"rate": 0.1}, False),
    ],
)
def test_networks_that_come_trained(place, settings, wanted):
    assert comes_trained(replace(image_record(place, "ddu", {}), settings=settings)) is wanted
