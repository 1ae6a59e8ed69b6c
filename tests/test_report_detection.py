"""Whether ours finds more than the entropy does: outcomes and sentences, against numbers worked out by hand."""

import math

import pytest

from image_results import image_records, image_trials
from splitpoint.report.detection import OPENING, outcome, told
from splitpoint.report.markdown import markdown
from splitpoint.report.sections import sections
from splitpoint.report.tables import Entry, summarised


@pytest.mark.parametrize(
    ("mean", "wanted"),
    # tolerance: 2 sqrt(0.03^2 + 0.04^2) = 0.1
    [(0.6, "level"), (0.601, "ahead"), (0.4, "level"), (0.399, "behind"), (math.nan, "not judged")],
)
def test_outcome_by_hand(mean, wanted):
    assert outcome(Entry(4, mean=mean, stderr=0.03), Entry(4, mean=0.5, stderr=0.04)) == wanted


def test_one_trial_is_not_judged():
    assert outcome(summarised([0.9]), summarised([0.5, 0.5])) == "not judged"


def captions(records, measure):
    (section,) = sections(records)
    (table,) = (table for table in section.tables if table.columns[0].measure.name == measure)
    return told(section, table)


def ours(dataset, method, values, measure="auroc_ood"):
    return image_trials(dataset, method, {measure: values})


def entropy(dataset, values, method="softmax"):
    return ours(dataset, method, values, "auroc_ood_entropy")


def test_methods_of_the_same_outcome_share_a_sentence():
    records = entropy("mnist/lenet", [0.8, 0.8]) + entropy("cifar10/vgg16", [0.8, 0.8])
    for method in ("splitpoint_default", "splitpoint_default_calibrated"):
        records += ours("mnist/lenet", method, [0.9, 0.9]) + ours("cifar10/vgg16", method, [0.7, 0.7])
    records += ours("mnist/lenet", "splitpoint_layers", [0.8, 0.8])
    assert captions(records, "auroc_ood") == (
        f"{OPENING}: Split-point (ours) and Split-point calibrated (ours) are ahead on 1 of 2 (MNIST, LeNet), level on "
        "0, behind on 1 (CIFAR-10, VGG-16). Split-point layers (ours) is ahead on 0 of 1, level on 1 (MNIST, LeNet), "
        "behind on 0.",
    )


def test_three_methods_are_listed_in_one_sentence():
    records = entropy("mnist/lenet", [0.8, 0.8]) + entropy("cifar10/vgg16", [0.8, 0.8])
    for method in ("splitpoint_default", "splitpoint_default_calibrated", "splitpoint_layers"):
        records += ours("mnist/lenet", method, [0.9, 0.9])
    (said,) = captions(records, "auroc_ood")
    assert (
        ": Split-point (ours), Split-point calibrated (ours) and Split-point layers (ours) are ahead on 1 of 1" in said
    )


def test_data_sets_that_cannot_be_judged_are_named():
    records = entropy("mnist/lenet", [0.8]) + ours("mnist/lenet", "splitpoint_layers", [0.9])
    records += entropy("cifar10/vgg16", [0.8, 0.8]) + ours("cifar10/vgg16", "splitpoint_layers", [0.9, 0.9])
    (said,) = captions(records, "auroc_ood")
    assert said.endswith("ahead on 1 of 2 (CIFAR-10, VGG-16), level on 0, behind on 0, not judged on 1 (MNIST, LeNet).")


def test_the_entropy_of_another_method_does_not_count():
    records = entropy("mnist/lenet", [0.8, 0.8], "ddu") + ours("mnist/lenet", "splitpoint_layers", [0.9, 0.9])
    records += entropy("cifar10/vgg16", [0.8, 0.8], "ddu")
    assert captions(records, "auroc_ood") == ()


def test_only_detection_is_compared():
    (main, *_) = sections(image_records())
    said = {table.columns[0].measure.name for table in main.tables if told(main, table)}
    assert said == {"auroc_error", "auroc_adv", "auroc_ood"}


def test_a_table_of_all_measures_has_a_caption_for_each():
    records = [record for record in image_records() if record.dataset == "mnist/lenet" and record.suite == "images"]
    (section,) = sections(records)
    said = told(section, section.tables[0])
    assert [caption.partition(".")[0] for caption in said] == [
        "AUROC errors",
        "AUROC adversarial",
        "AUROC out of distribution",
    ]
    text = markdown(records, [section])
    assert all(caption in text for caption in said)
    assert "1 data set (MNIST, LeNet). 3 trials in each cell." in text
