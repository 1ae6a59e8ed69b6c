"""The image experiments from end to end, on a few pictures of noise and networks of one epoch."""

import json
import math

import pytest
import torch

from image_files import image_folder
from splitpoint.baselines import METHODS
from splitpoint.bench import images
from splitpoint.bench.judging import SHEETS
from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.record import Journal
from splitpoint.bench.suites import bench_images, bench_images_ablation
from splitpoint.bench.training import PAPER
from splitpoint.errors import DataError, SettingsError

QUICK = {"epochs": 1, "trials": 1, "jobs": 1, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    image_folder(tmp_path_factory.mktemp("data"), patch)
    yield tmp_path_factory.mktemp("out")
    patch.undo()


@pytest.fixture(scope="module")
def results(folder):
    bench_images(folder, datasets=["mnist"], **QUICK)
    return Journal(folder).read()


def test_every_method_is_run_and_none_fails(results):
    assert {record.method for record in results} == set(images.IMAGE_METHODS)
    assert [record.error for record in results if record.error] == []
    assert {(record.dataset, record.protocol, record.suite) for record in results} == {
        ("mnist/lenet", "short", "images")
    }


def test_records_hold_every_metric_and_what_was_asked_for(results):
    detection = {f"auroc_{kind}{score}" for kind in ("error", "adv", "ood") for score in ("", "_entropy")}
    for record in results:
        assert detection | {"accuracy", "ece", "nll", "brier", "spearman_attack"} <= set(record.metrics)
        assert record.settings["epochs"] == 1
        assert record.settings["outside"] == "fashion_mnist + notmnist"
        assert record.timing["train_cpu_s"] > 0
        assert record.timing["infer_us_per_row"] > 0


def test_methods_on_one_network_share_its_accuracy_and_entropy(results):
    found = {record.method: record.metrics for record in results}
    same = ("softmax", "energy", "splitpoint", "splitpoint_default")
    assert len({found[method]["accuracy"] for method in same}) == 1
    assert len({found[method]["auroc_ood_entropy"] for method in same}) == 1
    assert found["splitpoint_default"]["auroc_ood"] == found["splitpoint_default_calibrated"]["auroc_ood"]
    assert found["splitpoint_default"]["auroc_ood"] != found["splitpoint_layers"]["auroc_ood"]


def test_sheets_are_kept_for_every_method_and_pictures_for_ours(results, folder):
    sheets = [json.loads(line) for line in (folder / SHEETS).read_text().splitlines()]
    assert {sheet["method"] for sheet in sheets} == set(images.IMAGE_METHODS)
    assert [sheet["method"] for sheet in sheets if sheet["thumbnails"]] == [images.DRAWN_METHOD]


def test_nothing_is_done_twice_and_networks_are_kept(results, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert "Nothing was left to do" in bench_images(folder, datasets=["mnist"], **QUICK)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    assert len(list((folder / "cache" / "networks").glob("*.safetensors"))) == 6, "five members and an evidential one"


def test_a_lost_record_is_made_again_from_the_same_network(results, folder, tmp_path):
    again = tmp_path / "again"
    bench_images(again, datasets=["mnist"], methods=["ddu", "deep_ensemble"], cache=folder / "cache", **QUICK)
    known = {record.method: record.metrics for record in results}
    for record in Journal(again).read():
        assert record.metrics == pytest.approx(known[record.method], nan_ok=True)


def test_results_of_other_settings_do_not_stand_in(results, folder):
    with pytest.raises(SettingsError, match=r"with epochs 2 for mnist/lenet .* has some with 1"):
        bench_images(folder, datasets=["mnist"], **(QUICK | {"epochs": 2}))
    with pytest.raises(SettingsError, match="with outside notmnist for mnist/lenet"):
        bench_images(folder, datasets=["mnist"], outside=["notmnist"], **QUICK)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"datasets": ["imagenette"]}, SettingsError, "Expected datasets among mnist, .* but got imagenette"),
        ({"networks": ["alexnet"]}, SettingsError, "Expected network among lenet, .* but got alexnet"),
        ({"outside": ["letters"]}, SettingsError, "Expected ood among .* but got letters"),
        ({"outside": ["mnist"]}, SettingsError, "Expected other sets than mnist"),
        ({"methods": ["gaussian"]}, SettingsError, "Expected methods among softmax, .* but got gaussian"),
        ({"protocol": "authors"}, SettingsError, "Expected protocol to be short or paper, but got 'authors'"),
        ({"networks": ["resnet20_published"]}, SettingsError, "Expected the ten classes and pictures"),
        ({"outside": ["svhn"]}, DataError, "Expected to find svhn"),
        ({"trials": 0}, SettingsError, "Expected trials >= 1"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(folder, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        bench_images(tmp_path / "none", **({"datasets": ["mnist"]} | QUICK | changes))
    assert not (tmp_path / "none").exists()


# What is trained, and how


def test_digits_are_not_mirrored_and_the_paper_trains_longer():
    assert images.schedule_of("paper", "cifar10", "vgg16") == PAPER
    assert not images.schedule_of("paper", "mnist", "lenet").augment
    assert images.schedule_of("short", "cifar10", "vgg16_small") == NETWORKS["vgg16_small"].schedule
    assert images.schedule_of("short", "mnist", "lenet", 2).epochs == 2


def test_heads_of_the_paper_are_trained_as_it_states_under_its_protocol():
    assert images.heads_of("splitpoint", "paper").epochs == 300
    assert images.heads_of("splitpoint", "short").epochs == images.SHORT_HEAD_EPOCHS
    assert images.heads_of("splitpoint_default", "paper") == images.heads_of("splitpoint_default", "short")


def test_rivals_get_the_temperature_that_the_paper_gives_them():
    for name in ("oc", "ddu"):
        method, calibrated = images.recipe(name, "paper")
        assert (method.temperature, calibrated) == ("nll", True)
    for name in ("softmax", "energy", "laplace", "splitpoint", "splitpoint_default"):
        assert not images.recipe(name, "paper")[1]
    assert images.recipe("temperature_scaling", "paper")[1]


def test_the_base_network_is_the_last_member_of_the_ensemble():
    assert images.member_seeds(3, 5)[-1] == 3
    assert len(set(images.member_seeds(3, 5))) == 5


def test_the_attack_of_an_ensemble_follows_the_gradient_of_its_mean():
    torch.manual_seed(0)
    members = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)) for _ in range(5)]
    data = torch.randn(8, 3), torch.arange(8) % 2
    predictor = METHODS["deep_ensemble"](task="classification").assemble(members, data, progress=False)
    x = torch.randn(4, 3, requires_grad=True)
    logs = images.LogProbabilities(predictor)(x)
    expected = torch.stack([member(x).softmax(1) for member in members]).mean(0).log()
    torch.testing.assert_close(logs, expected)
    logs[:, 0].sum().backward()
    assert x.grad.abs().min() > 0


# Ablations


def test_every_variant_is_run_and_named_as_published(folder, tmp_path):
    bench_images_ablation(tmp_path, datasets=["mnist"], cache=folder / "cache", **QUICK)
    records = Journal(tmp_path).read()
    assert [record.error for record in records if record.error] == []
    assert len(records) == 11 + 40 + 6
    assert {record.suite for record in records} == {"images-ablation"}
    variants = {record.variant for record in records}
    assert {"training=joint", "training=stagewise;train_fraction=0.2", "hidden_layers=3"} <= variants
    assert "calib_fraction=0.5;uq_train_set=calibration" in variants
    assert all(math.isfinite(record.metrics["accuracy"]) for record in records)
