"""The depth suite from end to end, on a few drawn rooms and tiny U-Nets of one epoch."""

import math

import pytest

from rooms import SIZE, scene_folder
from splitpoint.bench import depth_experiments
from splitpoint.bench.depth_controls import CONTROLS, STATISTICS, WIDTHS
from splitpoint.bench.map_artefacts import MapDrawing
from splitpoint.bench.record import Journal, Record
from splitpoint.bench.run import bench
from splitpoint.bench.suite import Work
from splitpoint.bench.suites import SUITES
from splitpoint.cli import main
from splitpoint.errors import DataError, SettingsError
from splitpoint.report import write

STRENGTHS = [0.0, 0.05, 0.2]
QUICK = {
    "epochs": 1,
    "trials": 1,
    "jobs": 1,
    "progress": False,
    "size": f"{SIZE[0]}x{SIZE[1]}",
    "width": 2,
    "images": 12,
    "attack_eps": STRENGTHS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    scene_folder(tmp_path_factory.mktemp("data"), patch)
    yield tmp_path_factory.mktemp("out")
    patch.undo()


@pytest.fixture(scope="module")
def results(folder):
    bench("depth", folder, **QUICK)
    return {record.method: record for record in Journal(folder).read()}


def test_every_method_and_every_control_is_run_and_none_fails(results):
    assert set(results) == {*depth_experiments.CHOSEN, *CONTROLS}
    assert [record.error for record in results.values() if record.error] == []
    places = {(record.suite, record.protocol, record.dataset, record.network) for record in results.values()}
    assert places == {("depth", "short", "nyu_depth", "unet")}


def test_records_hold_every_metric_and_what_was_asked_for(results):
    pixels = {"rmse", "rmse_authors", "winkler", "picp", "mpiw", "piece", "piece_plus", "piece_minus", "ause"}
    images = {"image_coverage", "image_coverage_low", "spearman_sweep", "auroc_adversarial", "auroc_ood"}
    for name in depth_experiments.CHOSEN:
        found = results[name].metrics
        assert pixels | images | {"auroc_ood_camvid", "auroc_ood_kitti_road", "spearman_total"} <= set(found)
        assert found["rmse"] >= found["rmse_authors"] > 0
        assert ("spearman_sweep_sds" in found) == name.startswith("splitpoint")
        assert results[name].timing["infer_us_per_row"] > 0
    assert results["splitpoint"].metrics["overfitting"] == results["constant_width"].metrics["overfitting"] > 0.5
    assert len(results["splitpoint"].settings["checks"]) > 2
    assert results["splitpoint"].metrics["warnings"] >= 0
    settings = results["gaussian"].settings
    assert (settings["epochs"], settings["width"], settings["size"]) == (1, 2, "16x32")
    assert settings["ood"] == "camvid + kitti_road"


def test_methods_on_one_network_share_its_error(results):
    shared = ("conformal", "splitpoint_paper", "splitpoint", "splitpoint_layers", *WIDTHS)
    assert len({results[name].metrics["rmse"] for name in shared}) == 1
    assert results["splitpoint"].metrics["winkler"] != results["splitpoint_layers"].metrics["winkler"]


def test_statistics_of_the_image_say_what_separates_the_sets_and_nothing_else(results):
    for name in STATISTICS:
        assert all(metric.startswith("auroc_") for metric in results[name].metrics)
    assert results["image_blue_minus_red"].metrics["auroc_ood"] == 1, "a blue sky in place of brown rooms"
    assert results["constant_width"].metrics["auroc_ood"] == 0.5


def test_drawings_are_kept_of_every_method_and_make_a_page(results, folder, tmp_path):
    drawings = {drawing.cell.method: drawing for drawing in MapDrawing.read(folder)}
    assert set(drawings) == {*depth_experiments.CHOSEN, *WIDTHS}
    shown = drawings["splitpoint"]
    assert shown.columns == ("clean", "attack 0.05", "attack 0.2", "CamVid", "KITTI road")
    assert [row.title for row in shown.rows] == [
        *("input", "truth", "prediction", "error", "lower bound", "upper bound", "epistemic score", "flagged")
    ]
    assert "flagged" not in {row.title for row in drawings["constant_width"].rows}
    assert shown.sweep.strength == tuple(STRENGTHS)
    assert math.fsum(shown.coverages.share) == pytest.approx(1)
    write(folder, tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert page.count('class="maps"') == len(drawings)
    assert "image blue minus red tells the sets apart with an AUROC of 1.000" in page
    assert "proved nothing" in (tmp_path / "report.md").read_text()


def test_nothing_is_done_twice_and_networks_are_kept(results, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert "Nothing was left to do" in bench("depth", folder, **QUICK)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    networks = list((folder / "cache" / "networks").glob("*.safetensors"))
    assert len(networks) == 10, "a base, five Gaussian members of which one is the Gaussian network, and four rivals"


def test_a_lost_record_is_made_again_from_the_same_networks(results, folder, tmp_path):
    bench("depth", tmp_path, methods=["deep_ensemble"], cache=folder / "cache", **QUICK)
    for record in Journal(tmp_path).read():
        found, known = (one.metrics | {"train_s_per_epoch": 0} for one in (record, results[record.method]))
        assert found == pytest.approx(known, nan_ok=True)


def test_results_of_other_settings_do_not_stand_in(results, folder):
    with pytest.raises(SettingsError, match=r"with epochs 2 for nyu_depth/unet .* has some with 1"):
        bench("depth", folder, **(QUICK | {"epochs": 2}))
    with pytest.raises(SettingsError, match="with width 3 for nyu_depth/unet"):
        bench("depth", folder, **(QUICK | {"width": 3}))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"size": "64"}, SettingsError, "Expected size as height x width in multiples of 16, .* but got '64'"),
        ({"size": "60x80"}, SettingsError, "Expected size as height x width in multiples of 16"),
        ({"attack_eps": [-0.1]}, SettingsError, "Expected attack_eps from 0 to 1, but got -0.1"),
        ({"methods": ["ddu"]}, SettingsError, "Expected methods among mc_dropout, .* but got ddu"),
        ({"ood": ["nyu_depth"]}, SettingsError, "Expected ood among .* but got nyu_depth"),
        ({"ood": ["apolloscape"]}, DataError, "Expected to find apolloscape"),
        ({"width": 0}, SettingsError, "Expected width >= 1"),
        ({"norm": "layer"}, SettingsError, "Expected norm to be one of batch, none"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(folder, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        bench("depth", tmp_path / "none", **(QUICK | changes))
    assert not (tmp_path / "none").exists()


def test_the_command_takes_the_options(folder, tmp_path, capsys):
    options = ["--seeds", "1", "--epochs", "1", "--jobs", "1", "--size", "16x32", "--width", "2", "--images", "8"]
    more = ["--methods", "gaussian", "--ood", "camvid", "--attack-eps", "0", "0.1", "--quiet", "--out", str(tmp_path)]
    assert main(["bench", "depth", *options, *more]) == 0
    assert "Next: splitpoint report" in capsys.readouterr().out
    found = {record.method: record for record in Journal(tmp_path).read()}
    assert set(found) == {"gaussian", *CONTROLS}
    assert found["gaussian"].settings["ood"] == "camvid"
    assert "auroc_adversarial" not in found["gaussian"].metrics, "the strength of the table is not asked for"


# What is trained, and how


def work(protocol, group="post_hoc", **options):
    own = {"width": 32, "norm": "none", "size": (128, 160), "images": None, "ood": ("apolloscape",), "device": "cpu"}
    return Work("depth", protocol, "clean", "nyu_depth", group, (), (0,), network="unet", options=own | options)


def test_the_protocol_of_the_paper_is_what_it_states():
    schedule = depth_experiments.schedule(work("paper"))
    assert (schedule.iterations, schedule.learning_rate, schedule.batch_size) == (60_000, 5e-5, 32)
    assert schedule.passes(675) == 89
    assert schedule.rate(0.0) == schedule.rate(0.99) == 5e-5
    setting = depth_experiments.PROTOCOLS["paper"]
    assert (setting.width, setting.norm, setting.inverse) == (32, "none", True)
    stated = {name: depth_experiments.method_of(name, work("paper")) for name in depth_experiments.CHOSEN}
    assert (stated["mc_dropout"].dropout, stated["mc_dropout"].passes) == (0.1, 5)
    assert stated["deep_ensemble"].members == 5
    assert stated["evidential_regression"].regulariser == 0.1
    assert stated["sqr_oc"].certificates == 100


def test_published_figures_compare_with_the_whole_protocol_only(results):
    suite = SUITES["depth"]
    place = ("depth", "paper", "clean", "nyu_depth", "gaussian", "", 0, (0,), 0)
    whole = Record(*place, settings=depth_experiments.settings(work("paper")))
    assert suite.obstacles(whole) == ()
    assert suite.obstacles(results["gaussian"]) == (
        "the U-Net is another",
        "networks take fewer steps",
        "images are smaller or fewer",
        "depths are in metres, the published ones inverse",
        "other sets are out of distribution",
    )
