"""The suite of several modalities from end to end, on small views and networks of a few epochs."""

import pytest

from modal_files import small_three_modal, small_views
from splitpoint.bench import modal_experiments
from splitpoint.bench.modal_artefacts import SpoiltDrawing
from splitpoint.bench.modal_experiments import AGREEMENT, CHOSEN, CONTRASTS, MIXTURES
from splitpoint.bench.record import Journal, Record
from splitpoint.bench.run import bench
from splitpoint.bench.suite import Work
from splitpoint.bench.suites import SUITES
from splitpoint.cli import main
from splitpoint.datasets.entry import VARIABLE
from splitpoint.errors import DataError, SettingsError
from splitpoint.report import write

QUICK = {"dataset": ["pie"], "epochs": 2, "trials": 1, "jobs": 1, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    data, patch = tmp_path_factory.mktemp("data"), pytest.MonkeyPatch()
    patch.setenv(VARIABLE, str(data))
    small_views(data / "multiview" / "pie.npz", each=12)
    small_three_modal(data / "three_modal_50.npz", clips=1)
    yield tmp_path_factory.mktemp("out")
    patch.undo()


@pytest.fixture(scope="module")
def results(folder):
    bench("multimodal", folder, entropy=["fixed", "published"], condition=["clean", "conflict", "missing"], **QUICK)
    return {(record.noise, record.method, record.variant): record for record in Journal(folder).read()}


def test_every_method_is_run_where_it_can_be_and_none_fails(results):
    assert [record.error for record in results.values() if record.error] == []
    wrong = {(name, "entropy=published") for name in MIXTURES}
    asked = {(name, "") for name in CHOSEN} | wrong
    for condition in ("clean", "conflict"):
        assert {(method, variant) for noise, method, variant in results if noise == condition} == asked
    assert {key[1:] for key in results if key[0] == "missing"} == {key for key in asked if key[0] not in CONTRASTS}
    assert {(r.suite, r.protocol, r.dataset, r.network) for r in results.values()} == {
        ("multimodal", "short", "pie", "all")
    }


def test_records_hold_what_the_condition_asks_for(results):
    for (noise, method, _), record in results.items():
        found = set(record.metrics)
        if method != AGREEMENT:
            assert {"accuracy", "ece", "mean_aleatoric", "mean_epistemic"} <= found
        assert ("auroc_conflict" in found) == (noise == "conflict")
        assert ("right_blame" in found) == (noise == "conflict" and method in CONTRASTS)
    assert results["clean", "softmax", ""].settings["learning_rate"] == 3e-3


def test_conditions_that_spoil_test_rows_share_the_networks(results, folder):
    assert results["clean", "softmax", ""].metrics["accuracy"] == results["clean", "ddu", ""].metrics["accuracy"]
    networks = list((folder / "cache" / "networks").glob("*.safetensors"))
    assert len(networks) == 6, "three members, of which one is the base network, and three rivals"
    right, wrong = (results["clean", "deep_ensemble", variant] for variant in ("", "entropy=published"))
    assert right.metrics["accuracy"] == wrong.metrics["accuracy"]
    assert right.metrics["mean_aleatoric"] != wrong.metrics["mean_aleatoric"]


def test_drawings_are_kept_of_every_trial(results, folder):
    found = {(one.cell.noise, one.cell.method, one.cell.variant): one for one in SpoiltDrawing.read(folder)}
    assert set(found) == {key for key in results if key[0] != "clean"}
    lying, blind = found["conflict", AGREEMENT, ""], found["missing", "softmax", ""]
    assert lying.modalities == ("intensity", "lbp", "gabor")
    assert all(sum(shares) == pytest.approx(1) for shares in lying.blamed)
    assert (lying.accuracy, blind.scores, blind.blamed) == ((), (), ())
    assert len(blind.accuracy) == 3


def test_nothing_is_done_twice_and_a_page_is_made(results, folder, tmp_path):
    assert "Nothing was left to do" in bench("multimodal", folder, condition=["clean", "missing"], **QUICK)
    write(folder, tmp_path)
    text = (tmp_path / "report.md").read_text()
    for heading in ("AUROC by the modality that is of another class", "Blame by agreement", "one modality missing"):
        assert heading in text
    assert (tmp_path / "index.html").read_text().count("color-mix") == 2 * 9, "two heat maps of three modalities"


def test_noise_trains_networks_anew_for_single_modalities_too(folder, tmp_path):
    more = {"dataset": ["three_modal"], "condition": ["label", "conflict"], "modalities": ["text", "all"], "width": 2}
    bench("multimodal", tmp_path, methods=["softmax", "rcml"], **(QUICK | more | {"epochs": 1}))
    found = {(record.noise, record.network, record.method) for record in Journal(tmp_path).read()}
    assert found == {
        *(("label", network, "softmax") for network in ("text", "all")),
        *((noise, "all", "rcml") for noise in ("label", "conflict")),
        ("conflict", "all", "softmax"),
    }
    assert "auroc_ood" in Journal(tmp_path).read()[0].metrics


def test_results_of_other_settings_do_not_stand_in(results, folder):
    with pytest.raises(SettingsError, match=r"with epochs 3 for pie/all .* has some with 2"):
        bench("multimodal", folder, **(QUICK | {"epochs": 3}))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dataset": ["cifar10"]}, SettingsError, "Expected dataset among three_modal, .* but got cifar10"),
        ({"dataset": ["handwritten"]}, DataError, "Expected to find"),
        ({"modalities": ["image"]}, SettingsError, "modalities among intensity, lbp, gabor, all, but got image"),
        ({"condition": ["noise"]}, SettingsError, "Expected condition among clean, diversity"),
        ({"modalities": ["lbp"], "condition": ["conflict"]}, SettingsError, "add modalities all"),
        ({"methods": ["oc"]}, SettingsError, "Expected methods among softmax"),
        ({"entropy": ["wrong"]}, SettingsError, "Expected entropy among fixed, published"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(folder, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        bench("multimodal", tmp_path / "none", **(QUICK | changes))
    assert not (tmp_path / "none").exists()


def test_the_command_takes_the_options(folder, tmp_path, capsys):
    options = ["--dataset", "pie", "--condition", "clean", "--seeds", "1", "--epochs", "1", "--jobs", "1"]
    more = ["--methods", "softmax", "--quiet", "--out", str(tmp_path)]
    assert main(["bench", "multimodal", *options, *more]) == 0
    assert "Next: splitpoint report" in capsys.readouterr().out


# What is trained, and how


def work(protocol, group="post_hoc", dataset="luma", network="all", **options):
    own = {"width": modal_experiments.PROTOCOLS[protocol].width, "device": "cpu"} | options
    return Work("multimodal", protocol, "clean", dataset, group, (), (0,), network=network, options=own)


def test_the_protocols_of_the_paper_and_of_its_code_are_what_they_state():
    for protocol, rate in (("paper", 1e-3), ("authors", 1e-2)):
        schedule = modal_experiments.schedule(work(protocol))
        assert (schedule.learning_rate, schedule.epochs, schedule.batch_size) == (rate, 300, 128)
        assert (schedule.factor, schedule.plateau, schedule.patience, schedule.steps) == (0.33, 5, 10, None)
        dropout, ensemble = (modal_experiments.method_of(name, work(protocol)) for name in MIXTURES)
        assert (dropout.dropout, dropout.passes, ensemble.members) == (0.3, 100, 10)
        rcml = modal_experiments.method_of("rcml", work(protocol))
        assert rcml.annealing * schedule.epochs == pytest.approx(50)


def test_published_figures_compare_with_the_whole_protocol_on_luma_only(results):
    suite = SUITES["multimodal"]
    place = ("multimodal", "paper", "clean", "luma", "mc_dropout", "", 0, (0,), 0)
    whole = Record(*place, settings=modal_experiments.settings(work("paper", "mc_dropout")))
    assert suite.obstacles(whole) == ()
    assert suite.obstacles(results["clean", "mc_dropout", ""]) == (
        "the data are others",
        "networks are smaller",
        "networks take fewer steps",
        "MC dropout has fewer passes",
    )
