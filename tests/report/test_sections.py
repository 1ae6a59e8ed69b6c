"""Records to sections: what stands together, in which order, and what every cell holds."""

from dataclasses import replace

import pytest

from image_results import image_records, image_trials
from splitpoint.bench.record import read_records
from splitpoint.report.facts import Problem
from splitpoint.report.sections import Place, sections

LENET, SMALL_VGG = Problem("mnist", "lenet"), Problem("cifar10", "vgg16_small")


def test_sections_of_a_folder_in_the_order_of_the_page(results):
    found = sections(read_records(results))
    assert [section.place for section in found] == [
        Place("uci", "authors", "clean"),
        Place("uci", "authors", "trimodal"),
        Place("cubic", "paper", "trimodal"),
        Place("uci-ablation", "authors", "clean", "splitpoint_paper", "residuals"),
        Place("uci-ablation", "authors", "clean", "splitpoint_paper", "train_fraction"),
    ]
    assert found[0].title == "UCI regression, authors' protocol, no added noise"
    assert found[0].rows == ("mc_dropout", "deep_ensemble", "splitpoint_paper", "own_method")
    assert [str(problem) for problem in found[0].problems] == ["boston", "energy", "wine", "yacht"]
    assert [table.title for table in found[0].tables] == [
        "RMSE",
        "PICP",
        "MPIW",
        "Spearman, total score",
        "Training, CPU seconds",
    ]
    assert len({section.slug for section in found}) == len(found)


def test_cells_hold_mean_place_and_verdict(cell):
    records = cell("boston", "mc_dropout", {"rmse": [3.9, 4.1]}) + cell(
        "boston", "splitpoint_paper", {"rmse": [5.0, 5.0]}
    )
    section, *rest = sections(records)
    assert rest == []
    first, second = (
        section.entries[method, Problem("boston"), "rmse"] for method in ("mc_dropout", "splitpoint_paper")
    )
    assert first.text(2) == "4.00 ± 0.10"
    assert (first.place, first.verdict, first.published.text) == (1, "reproduced", "3.99 ± 0.17")
    assert (second.place, second.verdict) == (2, "worse")


def test_a_failed_trial_stands_in_every_metric_and_is_named(cell):
    records = cell("boston", "splitpoint_paper", {"rmse": [3.0, 3.0], "winkler": [9.0, 9.0]}, errors=(1,))
    (section,) = sections(records)
    texts = {name: section.entries["splitpoint_paper", Problem("boston"), name].text(2) for name in ("rmse", "winkler")}
    assert texts == {"rmse": "1 of 2 failed", "winkler": "1 of 2 failed"}
    assert section.failures == ("Split-point (paper) on boston, trial 1: loss is <not> finite",)
    assert section.verdicts.failed == 2


def test_a_method_that_always_fails_is_shown_as_failed_in_every_column(cell):
    records = cell("boston", "gaussian", {"rmse": [1.0, 1.0]}, errors=(0, 1))
    records += cell("boston", "laplace", {"rmse": [1.0, 1.0]})
    (section,) = sections(records)
    assert section.entries["gaussian", Problem("boston"), "rmse"].text(2) == "2 of 2 failed"


def test_a_metric_that_a_method_does_not_have_leaves_the_cell_empty(cell):
    records = cell("boston", "gaussian", {"rmse": [1.0, 1.0], "crps": [1.0, 1.0]})
    records += cell("boston", "conformal", {"rmse": [1.0, 1.0]})
    (section,) = sections(records)
    assert ("conformal", Problem("boston"), "crps") not in section.entries
    assert section.entries["gaussian", Problem("boston"), "crps"].place is None


def test_one_data_set_makes_one_table_with_a_column_for_each_metric(cell):
    records = cell("cubic", "splitpoint_paper", {"rmse": [20.0, 21.0], "picp": [0.9, 0.91]}, suite="cubic")
    (section,) = sections(records)
    (table,) = section.tables
    assert [column.title for column in table.columns] == ["RMSE", "PICP", "Training, CPU seconds"]


def test_variants_are_grouped_by_what_they_change(cell):
    records = []
    for variant in ("train_fraction=0.4", "training=stagewise;train_fraction=0.2", "a=1;b=2", "training=joint"):
        records += cell("wine", "splitpoint_paper", {"rmse": [1.0, 1.0]}, suite="uci-ablation", variant=variant)
    found = {section.place.factor: section.rows for section in sections(records)}
    assert found == {"a, b": ("1, 2",), "train_fraction": ("0.2", "0.4", "joint")}


def test_words_beside_numbers_make_tables_of_their_own(cell):
    records = []
    for variant in ("calib_fraction=0.1;uq_train_set=train", "calib_fraction=0.5;uq_train_set=train", "u=x;v=y"):
        records += cell("wine", "splitpoint_paper", {"rmse": [1.0, 1.0]}, suite="uci-ablation", variant=variant)
    records += cell(
        "wine", "splitpoint_paper", {"rmse": [1.0, 1.0]}, variant="calib_fraction=0.1;uq_train_set=calibration"
    )
    found = {(section.place.factor, section.place.held): section.rows for section in sections(records)}
    assert found == {
        ("calib_fraction", "uq_train_set=train"): ("0.1", "0.5"),
        ("calib_fraction", "uq_train_set=calibration"): ("0.1",),
        ("u, v", ""): ("x, y",),
    }
    titles = [section.title for section in sections(records)]
    assert any(title.endswith("calibration fraction, heads trained on training images") for title in titles)
    assert len({section.slug for section in sections(records)}) == 3


def test_sections_of_images():
    found = sections(image_records())
    assert found[0].title == "Image classification, short schedule"
    assert found[0].problems == (LENET, SMALL_VGG, Problem("cifar10", "resnet20_published"))
    assert [column.title for column in found[0].tables[0].columns] == [
        "MNIST, LeNet",
        "CIFAR-10, small VGG-16",
        "CIFAR-10, ResNet-20",
    ]
    beside = found[0].entries["ddu", SMALL_VGG, "auroc_error_epistemic"]
    assert (beside.published.text, beside.verdict) == ("0.9182 ± 0.0010", None)
    assert found[0].entries["ddu", SMALL_VGG, "auroc_error"].published is None
    assert found[0].obstacles == (
        "the network is smaller than the published one",
        "the network is trained for fewer epochs than the published one (CIFAR-10, small VGG-16)",
        "half of the published test images serve calibration (CIFAR-10, ResNet-20)",
    )
    assert {(section.place.factor, section.place.held) for section in found[1:]} == {
        ("calib_fraction", "uq_train_set=train"),
        ("calib_fraction", "uq_train_set=calibration"),
        ("hidden_layers", ""),
        ("train_fraction", ""),
    }
    for section in found[1:]:
        known = {row for (row, _, name), entry in section.entries.items() if name == "accuracy" and entry.published}
        assert known == set(section.rows)


def test_the_published_network_on_the_paper_schedule_gets_a_verdict():
    records = image_trials("cifar10/vgg16", "ddu", {"accuracy": [0.9360, 0.9364]}, protocol="paper")
    assert sections(records)[0].entries["ddu", Problem("cifar10", "vgg16"), "accuracy"].verdict == "reproduced"


def test_trials_are_told_also_where_they_differ(cell):
    records = cell("wine", "splitpoint_paper", {"rmse": [1.0, 1.0]}) + cell("wine", "laplace", {"rmse": [1.0] * 5})
    (section,) = sections(records)
    assert section.extent == "2 to 5 trials"
    assert sections(cell("wine", "laplace", {"rmse": [1.0]}))[0].extent == "1 trial"


def test_protocols_that_ask_another_question_get_no_verdict(cell):
    metrics = {"rmse": [3.0, 3.1]}
    records = [
        record
        for dataset in ("boston", "energy")
        for noise in ("clean", "trimodal")
        for record in cell(dataset, "splitpoint_paper", metrics, noise=noise, protocol="paper")
    ]
    clean, noisy = sections(records)
    assert clean.entries["splitpoint_paper", Problem("boston"), "rmse"].verdict is not None
    assert clean.entries["splitpoint_paper", Problem("energy"), "rmse"].verdict is None
    assert clean.obstacles == ("the published tables predict the second target (energy)",)
    assert noisy.verdicts.compared == 0
    assert noisy.entries["splitpoint_paper", Problem("boston"), "rmse"].published is not None


@pytest.mark.parametrize("noise", ["clean", "gaussian"])
def test_a_noise_and_a_method_of_one_name_are_told_apart(cell, noise):
    (section,) = sections(cell("cubic", "gaussian", {"rmse": [1.0, 2.0]}, noise=noise, suite="cubic"))
    assert section.rows == ("gaussian",)
    assert section.title.endswith({"clean": "no added noise", "gaussian": "Gaussian noise"}[noise])


def test_several_seeds_of_a_trial_are_one_trial(cell):
    records = cell("boston", "gaussian", {"rmse": [1.0, 3.0]})
    again = [replace(record, seed=1, metrics={"rmse": 2 + record.metrics["rmse"]}) for record in records]
    (section,) = sections([*records, *again])
    entry = section.entries["gaussian", Problem("boston"), "rmse"]
    assert (entry.trials, entry.mean, entry.stderr) == (2, 3.0, 1.0)
