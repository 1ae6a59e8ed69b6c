"""Whether ours finds more than the entropy does: outcomes and sentences, against numbers worked out by hand."""

import math

import pytest

from image_results import image_records, image_trials
from splitpoint.report.detection import OPENING, SHARED, captions, outcome_of, paired
from splitpoint.report.sections import sections
from splitpoint.report.tables import Entry
from splitpoint.report.text import markdown


@pytest.mark.parametrize(
    ("mean", "wanted"),
    [(0.1, "level"), (0.101, "ahead"), (-0.1, "level"), (-0.101, "behind"), (math.nan, "not judged")],
)
def test_outcome_by_hand(mean, wanted):
    assert outcome_of(Entry(4, mean=mean, stderr=0.05)) == wanted


def test_differences_are_those_of_the_same_trial_and_seed():
    # differences 0.02, 0.02, 0.05: mean 0.03, deviations -0.01, -0.01, 0.02, standard error sqrt(6e-4 / 2 / 3) = 0.01
    ours = {(2, 0): 0.75, (0, 0): 0.92, (1, 0): 0.62}
    rival = {(0, 0): 0.90, (1, 0): 0.60, (2, 0): 0.70, (3, 0): 0.1}
    found = paired(ours, rival)
    assert (found.trials, found.mean, found.stderr) == (3, pytest.approx(0.03), pytest.approx(0.01))
    assert paired(ours, {(0, 1): 0.9}).trials == 0
    assert outcome_of(paired(ours, {(0, 1): 0.9})) == "not judged"
    assert outcome_of(paired({(0, 0): 0.9, (1, 0): None}, {(0, 0): 0.8, (1, 0): 0.8})) == "not judged"


def test_several_seeds_of_a_trial_are_one_difference():
    found = paired({(0, 0): 0.9, (0, 1): 0.7, (1, 0): 0.8}, {(0, 0): 0.8, (0, 1): 0.4, (1, 0): 0.6})
    assert (found.trials, found.mean, found.stderr) == (2, pytest.approx(0.2), pytest.approx(0.0))


def test_equal_scores_are_level():
    assert outcome_of(paired({(0, 0): 0.9, (1, 0): 0.8}, {(0, 0): 0.9, (1, 0): 0.8})) == "level"


def captions_of(records, metric="auroc_ood"):
    (section,) = sections(records)
    (table,) = (table for table in section.tables if table.columns[0].metric.name == metric)
    return captions(section, table)


def ours(place, method, values, metric="auroc_ood"):
    return image_trials(place, method, {metric: values})


def entropy(place, values, method="softmax"):
    return ours(place, method, values, "auroc_ood_entropy")


def test_methods_of_the_same_outcome_share_a_sentence():
    records = entropy("mnist/lenet", [0.8, 0.8]) + entropy("cifar10/vgg16", [0.8, 0.8])
    for method in ("splitpoint", "splitpoint_conformal"):
        records += ours("mnist/lenet", method, [0.9, 0.9]) + ours("cifar10/vgg16", method, [0.7, 0.7])
    records += ours("mnist/lenet", "splitpoint_layers", [0.8, 0.8])
    assert captions_of(records) == (
        f"{OPENING}: Split-point (ours) and Split-point calibrated (ours) are ahead on 1 of 2 (MNIST, LeNet), level on "
        "0, behind on 1 (CIFAR-10, VGG-16). Split-point layers (ours) is ahead on 0 of 1, level on 1 (MNIST, LeNet), "
        "behind on 0.",
    )


def test_three_methods_are_listed_in_one_sentence():
    records = entropy("mnist/lenet", [0.8, 0.8]) + entropy("cifar10/vgg16", [0.8, 0.8])
    for method in ("splitpoint", "splitpoint_conformal", "splitpoint_layers"):
        records += ours("mnist/lenet", method, [0.9, 0.9])
    (said,) = captions_of(records)
    assert (
        ": Split-point (ours), Split-point calibrated (ours) and Split-point layers (ours) are ahead on 1 of 1" in said
    )


def test_a_small_gain_in_every_trial_is_ahead_however_much_trials_differ():
    records = entropy("mnist/lenet", [0.6, 0.7, 0.8]) + entropy("cifar10/vgg16", [0.8, 0.8])
    records += ours("mnist/lenet", "splitpoint_layers", [0.61, 0.711, 0.809])
    (said,) = captions_of(records)
    assert said.endswith("Split-point layers (ours) is ahead on 1 of 1 (MNIST, LeNet), level on 0, behind on 0.")


def test_the_only_trial_is_told_in_words():
    records = entropy("mnist/lenet", [0.8]) + ours("mnist/lenet", "splitpoint_layers", [0.812])
    records += entropy("cifar10/vgg16", [0.8]) + ours("cifar10/vgg16", "splitpoint_layers", [0.795])
    (said,) = captions_of(records)
    assert said.endswith(
        ": Split-point layers (ours) is 0.012 ahead in the only trial on MNIST, LeNet, 0.005 behind in the only trial "
        "on CIFAR-10, VGG-16."
    )
    equal = entropy("mnist/lenet", [0.8]) + ours("mnist/lenet", "splitpoint_layers", [0.8001])
    assert captions_of(equal + entropy("cifar10/vgg16", [0.8]))[0].endswith(
        "is level to three decimals in the only trial on MNIST, LeNet."
    )


def test_data_sets_that_cannot_be_judged_are_named():
    records = entropy("mnist/lenet", [0.8, 0.8]) + ours("mnist/lenet", "splitpoint_layers", [0.9, math.nan])
    records += entropy("cifar10/vgg16", [0.8, 0.8]) + ours("cifar10/vgg16", "splitpoint_layers", [0.9, 0.9])
    (said,) = captions_of(records)
    assert said.endswith("ahead on 1 of 1 (CIFAR-10, VGG-16), level on 0, behind on 0, not judged on 1 (MNIST, LeNet).")


def test_networks_that_come_trained_are_named_once():
    records = []
    for place in ("mnist/lenet", "cifar10/resnet20_published", "imagenet/torchvision_vgg16"):
        records += entropy(place, [0.8, 0.8])
        for method in ("splitpoint", "splitpoint_layers"):
            records += ours(place, method, [0.9, 0.9])
    _, shared = captions_of(records)
    assert shared == f"With a network that comes trained: CIFAR-10, ResNet-20; ImageNet, VGG-16. {SHARED}"
    single = [record for record in records if record.trial == 0]
    assert len(captions_of(single)) == 1  # one trial has no spread


def test_the_entropy_of_another_method_does_not_count():
    records = entropy("mnist/lenet", [0.8, 0.8], "ddu") + ours("mnist/lenet", "splitpoint_layers", [0.9, 0.9])
    records += entropy("cifar10/vgg16", [0.8, 0.8], "ddu")
    assert captions_of(records) == ()


def test_only_detection_is_compared():
    (main, *_) = sections(image_records())
    said = {table.columns[0].metric.name for table in main.tables if captions(main, table)}
    assert said == {"auroc_error", "auroc_adversarial", "auroc_ood"}


def test_a_table_of_all_metrics_has_a_caption_for_each():
    records = [record for record in image_records() if record.dataset == "mnist" and record.suite == "images"]
    (section,) = sections(records)
    said = captions(section, section.tables[0])
    assert [caption.partition(".")[0] for caption in said] == [
        "AUROC errors",
        "AUROC adversarial",
        "AUROC out of distribution",
    ]
    text = markdown(records, [section])
    assert all(caption in text for caption in said)
    assert "1 data set (MNIST, LeNet). 3 trials in each cell." in text
