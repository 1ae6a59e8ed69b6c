"""The image suite from end to end, on a few images of noise and networks of one epoch."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from image_files import image_folder
from splitpoint.baselines import METHODS
from splitpoint.bench import run
from splitpoint.bench.architectures import cifar_resnet
from splitpoint.bench.artefacts import Drawing
from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.record import Journal
from splitpoint.bench.run import bench
from splitpoint.bench.suite import Work
from splitpoint.bench.suites import images
from splitpoint.cli import main
from splitpoint.datasets.entry import VARIABLE
from splitpoint.datasets.images import IMAGE_SETS
from splitpoint.errors import DataError, SettingsError, SplitPointError

QUICK = {"epochs": 1, "trials": 1, "jobs": 1, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    image_folder(tmp_path_factory.mktemp("data"), patch)
    yield tmp_path_factory.mktemp("out")
    patch.undo()


@pytest.fixture(scope="module")
def results(folder):
    bench("images", folder, datasets=["mnist"], **QUICK)
    return Journal(folder).read()


def test_every_method_is_run_and_none_fails(results):
    assert {record.method for record in results} == set(images.image_methods())
    assert [record.error for record in results if record.error] == []
    assert {(record.dataset, record.network, record.protocol, record.suite) for record in results} == {
        ("mnist", "lenet", "short", "images")
    }


def test_records_hold_every_metric_and_what_was_asked_for(results):
    detection = {f"auroc_{kind}{score}" for kind in ("error", "adversarial", "ood") for score in ("", "_entropy")}
    for record in results:
        assert detection | {"accuracy", "ece", "nll", "brier", "spearman_attack"} <= set(record.metrics)
        assert record.settings["epochs"] == 1
        assert record.settings["ood"] == "fashion_mnist + notmnist"
        assert record.timing["train_cpu_s"] > 0
        assert record.timing["infer_us_per_row"] > 0


def test_methods_on_one_network_share_its_accuracy_and_entropy(results):
    found = {record.method: record.metrics for record in results}
    same = ("softmax", "energy", "splitpoint_paper", "splitpoint")
    assert len({found[method]["accuracy"] for method in same}) == 1
    assert len({found[method]["auroc_ood_entropy"] for method in same}) == 1
    assert found["splitpoint_paper"]["auroc_ood"] == found["splitpoint_paper_calibrated"]["auroc_ood"]
    assert found["splitpoint"]["auroc_ood"] != found["splitpoint_layers"]["auroc_ood"]


def test_drawings_are_kept_for_every_method_and_thumbnails_for_ours(results, folder):
    drawings = Drawing.read(folder)
    assert {drawing.cell.method for drawing in drawings} == set(images.image_methods())
    assert [drawing.cell.method for drawing in drawings if drawing.thumbnails] == [images.SHOWN_METHOD]
    assert {drawing.cell.method for drawing in drawings if drawing.calibrated} == {
        "temperature_scaling",
        "oc",
        "ddu",
        "deep_ensemble",
        "splitpoint_paper_calibrated",
        "splitpoint_conformal",
        "splitpoint_layers",
    }


def test_nothing_is_done_twice_and_networks_are_kept(results, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert "Nothing was left to do" in bench("images", folder, datasets=["mnist"], **QUICK)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    assert len(list((folder / "cache" / "networks").glob("*.safetensors"))) == 6, "five members and an evidential one"


def test_a_lost_record_is_made_again_from_the_same_network(results, folder, tmp_path):
    again = tmp_path / "again"
    bench("images", again, datasets=["mnist"], methods=["ddu", "deep_ensemble"], cache=folder / "cache", **QUICK)
    known = {record.method: record.metrics for record in results}
    for record in Journal(again).read():
        assert record.metrics == pytest.approx(known[record.method], nan_ok=True)


def test_rows_of_training_images_are_recorded_only_where_they_teach(results, folder, tmp_path):
    shutil.copytree(folder / "cache" / "networks", tmp_path / "cache" / "networks")
    bench("images", tmp_path, datasets=["mnist"], methods=images.UNTAUGHT, **QUICK)
    known = {record.method: record.metrics for record in results}
    for record in Journal(tmp_path).read():
        assert record.metrics == pytest.approx(known[record.method], nan_ok=True)
    assert {path.name.partition("-")[0] for path in tmp_path.rglob("*.npy")} == {"attacked", "calibration", "ood"}
    bench("images", tmp_path, datasets=["mnist"], methods=["ddu"], **QUICK)
    assert len(list(tmp_path.rglob("train-*.npy"))) == 1


def test_results_of_other_settings_do_not_stand_in(results, folder):
    with pytest.raises(SettingsError, match=r"with epochs 2 for mnist/lenet .* has some with 1"):
        bench("images", folder, datasets=["mnist"], **(QUICK | {"epochs": 2}))
    with pytest.raises(SettingsError, match="with ood notmnist for mnist/lenet"):
        bench("images", folder, datasets=["mnist"], ood=["notmnist"], **QUICK)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"datasets": ["imagenette"]}, SettingsError, "Expected datasets among mnist, .* but got imagenette"),
        ({"network": ["alexnet"]}, SettingsError, "Expected network among lenet, .* but got alexnet"),
        ({"ood": ["letters"]}, SettingsError, "Expected ood among .* but got letters"),
        ({"ood": ["mnist"]}, SettingsError, "Expected ood to name other sets than mnist"),
        ({"methods": ["gaussian"]}, SettingsError, "Expected methods among softmax, .* but got gaussian"),
        ({"protocol": "authors"}, SettingsError, "Expected protocol to be one of short, paper, but got 'authors'"),
        ({"ood": ["svhn"]}, DataError, "Expected to find svhn"),
        ({"trials": 0}, SettingsError, "Expected trials >= 1"),
        ({"threads": 0}, SettingsError, "Expected threads >= 1"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(folder, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        bench("images", tmp_path / "none", **({"datasets": ["mnist"]} | QUICK | changes))
    assert not (tmp_path / "none").exists()


# What is trained, and how


def work(tmp_path, dataset="cifar10", network="vgg16", protocol="paper", group="post_hoc"):
    options = {"ood": (), "cache": tmp_path, "device": "cpu"}
    return Work("images", protocol, "clean", dataset, group, (), (0,), network=network, options=options)


def test_heads_of_the_paper_are_trained_as_it_states_under_its_protocol(tmp_path):
    stated = {name: images.method_of("splitpoint_paper", work(tmp_path, name)) for name in ("cifar10", "imagenet")}
    assert (stated["cifar10"].epochs, stated["cifar10"].learning_rate) == (300, 1e-4)
    assert (stated["imagenet"].epochs, stated["imagenet"].learning_rate) == (100, 1e-5)
    short = images.method_of("splitpoint_paper", work(tmp_path, protocol="short"))
    assert short.epochs == images.SHORT_HEAD_EPOCHS
    ours = [images.method_of("splitpoint", work(tmp_path, "imagenet", protocol=name)) for name in ("paper", "short")]
    assert ours[0] == ours[1]


def test_rivals_get_the_temperature_that_the_paper_gives_them(tmp_path):
    for name in ("oc", "ddu"):
        assert images.method_of(name, work(tmp_path)).temperature == "nll"
        assert images.calibrates(name)
    for name in ("softmax", "energy", "laplace", "splitpoint_paper", "splitpoint"):
        assert not images.calibrates(name)
    assert images.calibrates("temperature_scaling")


def test_the_base_network_is_the_last_member_of_the_ensemble():
    assert images.member_seeds(3, 5)[-1] == 3
    assert len(set(images.member_seeds(3, 5))) == 5


def test_an_ensemble_costs_as_much_as_its_members(tmp_path):
    assert images.cost(work(tmp_path, group="deep_ensemble")) == 5 * images.cost(work(tmp_path)) == 5 * 350
    assert images.cost(work(tmp_path, group="evidential_classification")) == 350
    assert images.cost(work(tmp_path, network="resnet20_published")) == 1


def test_the_attack_of_an_ensemble_follows_the_gradient_of_its_mean():
    torch.manual_seed(0)
    members = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)) for _ in range(5)]
    data = torch.randn(8, 3), torch.arange(8) % 2
    predictor = METHODS["deep_ensemble"](task="classification").assemble(members, data, progress=False)
    x = torch.randn(4, 3, requires_grad=True)
    logs = images.LogProbabilities(predictor)(x)
    expected = torch.stack([member(x).softmax(1) for member in members]).mean(0).log()
    torch.testing.assert_close(logs, expected)
    gradients = [torch.autograd.grad(values[:, 0].sum(), x)[0] for values in (logs, expected)]
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().min() > 0


def test_a_failure_is_recorded_with_its_settings(folder, tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("no densities today")

    monkeypatch.setattr(METHODS["ddu"].method, "_learn", broken)
    with pytest.raises(SplitPointError, match=r"Expected all 2 trials .* but 1 failed"):
        bench("images", tmp_path, datasets=["mnist"], methods=["ddu", "softmax"], cache=folder / "cache", **QUICK)
    failed, whole = sorted(Journal(tmp_path).read(), key=lambda record: record.method)
    assert (failed.error, whole.error) == ("ValueError: no densities today", None)
    assert failed.settings["epochs"] == 1


# Networks that come trained


@pytest.fixture(scope="module")
def published(folder, tmp_path_factory):
    """A data folder with weights of a ResNet-20 that nobody trained, and what comes of it."""
    data = Path(os.environ[VARIABLE])
    (data / "models").mkdir()
    torch.manual_seed(0)
    weights = cifar_resnet(20).state_dict()
    save_file(weights, data / "models" / "resnet20_cifar10.safetensors")
    out = tmp_path_factory.mktemp("published")
    place = {"datasets": ["cifar10"], "network": ["resnet20_published"], "ood": ["mnist"]}
    settings = {"trials": 2, "jobs": 1, "progress": False}
    bench("images", out, methods=["softmax", "splitpoint_layers"], **place, **settings)
    return Journal(out).read()


def test_halves_of_the_test_part_are_trials_of_a_network_that_comes_trained(published):
    assert [record.error for record in published if record.error] == []
    assert {(record.method, record.trial) for record in published} == {
        (method, trial) for method in ("softmax", "splitpoint_layers") for trial in (0, 1)
    }
    assert "epochs" not in published[0].settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["deep_ensemble"]}, "Expected methods among softmax, .* but got deep_ensemble"),
        ({"epochs": 3}, "Expected no epochs with networks that come trained"),
        ({"datasets": ["mnist"]}, "Expected the ten classes .*; give it cifar10"),
    ],
)
def test_what_a_network_that_comes_trained_cannot_do(published, tmp_path, changes, message):
    place = {"datasets": ["cifar10"], "network": ["resnet20_published"], "ood": ["notmnist"]}
    with pytest.raises(SettingsError, match=message):
        bench("images", tmp_path, **(place | changes))


def test_the_command_hands_everything_on(monkeypatch, capsys, tmp_path):
    given = {}
    monkeypatch.setattr(
        run, "bench", lambda name, folder, **rest: given.update(rest, name=name, folder=folder) or "done"
    )
    words = "bench images --datasets mnist --network lenet vgg16 --ood notmnist --seeds 2 --epochs 3 --protocol paper"
    words += " --device cuda:1 --threads 4"
    assert main([*words.split(), "--cache", str(tmp_path), "--methods", "ddu", "--out", "here"]) == 0
    assert capsys.readouterr().out == "done\n"
    assert (given["datasets"], given["network"], given["ood"]) == (["mnist"], ["lenet", "vgg16"], ["notmnist"])
    assert (given["trials"], given["epochs"], given["protocol"]) == (2, 3, "paper")
    assert (given["cache"], given["methods"], given["folder"]) == (tmp_path, ["ddu"], Path("here"))
    assert (given["device"], given["threads"], given["name"]) == ("cuda:1", 4, "images")


@pytest.mark.parametrize("suite", ["images", "images-ablation"])
def test_threads_are_those_of_the_processes(folder, tmp_path, monkeypatch, suite):
    given = []
    monkeypatch.setattr(run, "run_all", lambda *_, threads, **__: given.append(threads))
    bench(suite, tmp_path, datasets=["mnist"], **QUICK)
    bench(suite, tmp_path, datasets=["mnist"], threads=3, **QUICK)
    assert given == [1, 3]


def test_help_names_every_data_set_and_network(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "images", "--help"])
    shown = capsys.readouterr().out.replace("\n", " ")
    sets = [name for name, entry in IMAGE_SETS.items() if entry.ood]
    assert [name for name in (*sets, *NETWORKS) if name not in shown.replace("- ", "-")] == []


# Evidential networks


@pytest.mark.parametrize(
    ("protocol", "network", "rate"), [("short", "lenet", 0.4), ("short", "vgg16_small", None), ("paper", "lenet", None)]
)
def test_evidential_networks_have_a_rate_of_their_own_where_the_schedule_is_short(tmp_path, protocol, network, rate):
    some = work(tmp_path, "mnist", network, protocol, "evidential_classification")
    usual, found = images.schedule(some), images.evidential_schedule(some)
    assert found.learning_rate == (rate or usual.learning_rate)
    assert found.epochs == usual.epochs
