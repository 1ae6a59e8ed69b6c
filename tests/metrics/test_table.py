"""The table of metrics: complete, consistent, and what is measured of a prediction by hand and by scaling."""

import math
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from scipy import stats

from splitpoint import metrics
from splitpoint.conformal import Conformity
from splitpoint.errors import ShapeError
from splitpoint.metrics import LEVEL, METRICS, Evidence, Metric, measured, metric, ordered, row_scores
from splitpoint.prediction import ClassificationPrediction, Prediction, RegressionPrediction

REGRESSION = {
    "rmse", "winkler", "picp", "mpiw", "piece", "piece_authors", "piece_plus", "piece_minus", "piece_floor_plus",
    "piece_floor_minus", "spearman_epistemic", "spearman_total",
}  # fmt: skip
"""What benchmarks record of every regression prediction."""

CLASSIFICATION = {
    "accuracy", "ece", "ece_floor", "nll", "brier", "auroc_error", "auroc_error_epistemic", "auroc_error_entropy",
}  # fmt: skip
"""What they record of every classification prediction."""

IMAGES = CLASSIFICATION | {
    "auroc_adversarial", "auroc_adversarial_entropy", "auroc_ood", "auroc_ood_entropy", "spearman_attack",
    "flagged_test", "flagged_ood",
}  # fmt: skip
"""And of images, with those that were attacked and those out of distribution."""

HELPERS = {
    "auroc", "aupr", "fpr95", "eaurc", "spearman", "piece_floor",  # of scores or rows, used by what is in the table
    "spoilt_aurocs", "blamed",  # by the spoilt modality
    "reliability", "risk_coverage", "sparsification",  # curves
    "measured", "metric", "ordered", "on_targets", "row_scores",  # of the table itself
}  # fmt: skip
"""Public functions that are no metric of a prediction."""


def column(*values):
    return torch.tensor(values)[:, None]


def numbers(rows=40, normal=True):
    generator = torch.Generator().manual_seed(0)
    mean, noise, doubt = (torch.rand(rows, 1, generator=generator) for _ in range(3))
    centre, half = mean[..., None], (1 + noise)[..., None]
    scores, scale = (noise, doubt, noise + doubt), 1 + noise if normal else None
    return RegressionPrediction(*scores, None, mean, (0.95,), centre - half, centre + half, scale=scale)


def target(rows=40):
    return 2 * torch.randn(rows, 1, generator=torch.Generator().manual_seed(1))


def classes(probs, epistemic):
    probs, score = torch.tensor(probs), torch.tensor(epistemic)
    entropy = -(probs * probs.clamp(min=1e-30).log()).sum(1)
    scores = {"aleatoric": entropy, "epistemic": score, "total": entropy + score}
    return ClassificationPrediction(probs=probs, base_probs=probs, label=probs.argmax(1), reference=None, **scores)


TEST = classes([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0.1, 0.2, 0.5, 0.3])
ADVERSARIAL = classes([[0.6, 0.4], [0.55, 0.45], [0.5, 0.5], [0.45, 0.55]], [0.4, 0.6, 0.7, 0.05])
OOD = classes([[0.9, 0.1], [0.9, 0.1]], [0.9, 0.25])
ATTACK = {"strength": [0.0, 0.1, 0.2], "accuracy": [0.75, 0.5, 0.25], "epistemic": [0.1, 0.4, 0.3]}


def images(**changes):
    parts = {"ood": OOD, "adversarial": ADVERSARIAL, "attack": ATTACK, "threshold": 0.45} | changes
    return Evidence(TEST, torch.tensor([0, 0, 1, 1]), **parts)


# The table


def test_every_public_metric_is_in_the_table():
    functions = {name for name in metrics.__all__ if name.islower()}
    assert functions - HELPERS <= set(METRICS)
    assert functions >= HELPERS
    assert not HELPERS & set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_an_entry_is_whole(name):
    entry = METRICS[name]
    assert entry.name == name
    assert entry.title
    assert entry.about.endswith(".")
    assert entry.better in {"lower", "higher", "level", "none"}
    assert entry.unit in {"target", ""}
    assert entry.task in {"regression", "classification", None}
    evidence = Evidence(numbers(), target()) if entry.task == "regression" else images()
    for part in entry.needs:
        attrgetter(part)(evidence)  # exists


def test_no_two_entries_share_a_title():
    assert len({entry.title for entry in METRICS.values()}) == len(METRICS)


def test_a_metric_says_which_way_is_better():
    lower, higher, level, none = (METRICS[name] for name in ("rmse", "accuracy", "picp", "mpiw"))
    assert [entry.sign for entry in (lower, higher, level, none)] == ["↓", "↑", "→ 0.95", ""]
    assert [entry.preference for entry in (lower, higher)] == ["lower is better", "higher is better"]
    assert [entry.preference for entry in (level, none)] == ["closest to 0.95 is best", "not ranked"]
    assert (lower.loss(3.0), higher.loss(0.4), level.loss(0.9), level.loss(1.0)) == (3.0, -0.4, 0.05, 0.05)
    assert LEVEL == 0.95


def test_unknown_metrics_come_last_and_are_not_ranked():
    names = [entry.name for entry in ordered(["zeta_score", "picp", "alpha", "rmse", "picp"])]
    assert names == ["rmse", "picp", "alpha", "zeta_score"]
    assert metric("zeta_score") == Metric("zeta_score", None, "zeta score", "none")
    assert metric("picp") is METRICS["picp"]


def not_won(good, bad):
    """Ranked metrics that do not prefer the first."""
    best, worst = measured(good), measured(bad)
    losses = {name: METRICS[name].loss for name in best if METRICS[name].better != "none"}
    return {name for name, loss in losses.items() if loss(best[name]) >= loss(worst[name])}


def test_the_better_of_two_regressions_is_ranked_first():
    generator = torch.Generator().manual_seed(0)
    noise, y, wild = torch.rand(4000, generator=generator) + 0.1, *torch.randn(2, 4000, generator=generator)
    half = 1.96 * noise[:, None]
    good = RegressionPrediction(noise, noise, noise, None, torch.zeros(4000), (0.95,), -half, half, scale=noise)
    bad = replace(
        good,
        mean=wild,
        epistemic=-noise,
        support=-noise,
        total=-noise,
        lowers=wild[:, None],
        uppers=wild[:, None] + 0.1,
    )
    high, low = (replace(good, epistemic=noise + by, support=noise + by) for by in (1, -3))
    best = Evidence(good, noise * y, ood=high, adversarial=high)
    assert not_won(best, Evidence(bad, noise * y, ood=low, adversarial=low)) == set()


def test_the_better_of_two_classifications_is_ranked_first():
    generator = torch.Generator().manual_seed(0)
    confidence, drawn = 0.5 + torch.rand(2, 4000, generator=generator) / 2
    labels = (2 * drawn - 1 > confidence).long()  # 0 with the probability that is stated
    doubt = 1 - confidence
    probs = torch.stack([confidence, doubt], 1)
    good = ClassificationPrediction(doubt, doubt, doubt, None, probs, probs, probs.argmax(1))
    turned = replace(good, probs=probs.flip(1), label=1 - good.label)
    blind = replace(good, aleatoric=confidence, epistemic=confidence, support=confidence, total=confidence)
    high, low = (replace(good, epistemic=doubt + by, support=doubt + by, aleatoric=doubt + by) for by in (1, -3))
    rising, falling = ({"accuracy": [0.9, 0.5, 0.1], "epistemic": way} for way in ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]))
    best = Evidence(good, labels, ood=high, adversarial=high, attack=rising)
    probabilities = not_won(best, Evidence(blind, labels, ood=low, adversarial=low, attack=falling))
    assert probabilities == {"accuracy", "ece", "adaptive_ece", "classwise_ece", "nll", "brier"}
    assert not probabilities & not_won(best, replace(best, prediction=turned))


# What is measured: regression


def test_regression_by_hand():
    own = RegressionPrediction(
        aleatoric=column(1.0, 2.0, 3.0, 4.0),
        epistemic=column(1.0, 2.0, 3.0, 4.0),
        total=column(4.0, 3.0, 2.0, 1.0),
        reference=None,
        mean=torch.zeros(4, 1),
        levels=(0.75,),
        lowers=column(-1.0, -1.0, -2.0, -2.0)[..., None],
        uppers=column(1.0, 1.0, 2.0, 2.0)[..., None],
    )
    found = measured(Evidence(own, column(0.5, -1.0, 1.0, 4.0), 10.0), recorded=True)
    assert set(found) == REGRESSION
    assert found["rmse"] == pytest.approx(10 * math.sqrt((0.25 + 1 + 1 + 16) / 4))
    assert found["mpiw"] == pytest.approx(10 * 3)
    assert found["picp"] == 0.75
    assert found["winkler"] == pytest.approx(10 * (3 + 2 / 0.25 * 2 / 4))  # one target is 2 above its interval
    assert found["piece_plus"] == pytest.approx(0.75 - 2 / 3)
    assert found["piece_minus"] == pytest.approx(0.25)
    sizes = [0.5, 1.0, 1.0, 4.0]
    assert found["spearman_epistemic"] == pytest.approx(stats.spearmanr(sizes, [1, 2, 3, 4]).statistic)
    assert found["spearman_total"] == pytest.approx(stats.spearmanr(sizes, [4, 3, 2, 1]).statistic)


def test_units_scale_what_has_units_and_nothing_else():
    one, many = (measured(Evidence(numbers(), target(), scale)) for scale in (1.0, 7.5))
    scaling = {"rmse", "winkler", "mpiw", "crps", "mae", "pinball"}
    assert scaling < set(one)
    for name, value in one.items():
        assert many[name] == pytest.approx((7.5 if name in scaling else 1.0) * value), name


def test_only_a_distribution_has_a_crps():
    assert set(measured(Evidence(numbers(), target()), recorded=True)) == REGRESSION | {"crps"}
    assert set(measured(Evidence(numbers(normal=False), target()), recorded=True)) == REGRESSION


def test_targets_may_be_a_vector_and_must_fit():
    own, y = numbers(), target()
    assert measured(Evidence(own, y[:, 0])) == measured(Evidence(own, y))
    with pytest.raises(ShapeError):
        measured(Evidence(own, torch.zeros(3)))


def test_regression_finds_inputs_out_of_distribution_by_the_epistemic_score():
    own = numbers()
    found = measured(Evidence(own[:30], target()[:30], ood=own[30:]), recorded=True)
    assert set(found) == REGRESSION | {"crps", "auroc_ood"}
    assert found["auroc_ood"] == metrics.auroc(own.epistemic[:30], own.epistemic[30:])


# What is measured: classification


def test_classification_by_hand():
    found = measured(images(), recorded=True)
    assert set(found) == IMAGES
    assert found["accuracy"] == 0.75
    assert found["nll"] == pytest.approx(-sum(map(math.log, (0.9, 0.8, 0.4, 0.7))) / 4, rel=1e-5)
    assert found["brier"] == pytest.approx(sum(2 * miss**2 for miss in (0.1, 0.2, 0.6, 0.3)) / 4, rel=1e-5)
    assert found["ece"] == pytest.approx((0.1 + 0.2 + 0.6 + 0.3) / 4, rel=1e-5)
    assert found["auroc_error"] == found["auroc_error_entropy"] == found["auroc_error_epistemic"] == 1.0
    # of the 16 pairs the attacked score is the higher one in 3 + 4 + 4 + 0
    assert found["auroc_adversarial"] == pytest.approx(11 / 16)
    # 0.9 beats all four, 0.25 beats two
    assert found["auroc_ood"] == pytest.approx(6 / 8)
    # all entropies out of distribution equal the lowest test entropy: one tie each
    assert found["auroc_ood_entropy"] == pytest.approx(0.5 / 4)
    assert (found["flagged_test"], found["flagged_ood"]) == (0.25, 0.5)
    assert found["spearman_attack"] == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ("ood", {"auroc_ood", "auroc_ood_entropy", "flagged_ood"}),
        ("adversarial", {"auroc_adversarial", "auroc_adversarial_entropy"}),
        ("attack", {"spearman_attack"}),
        ("threshold", {"flagged_test", "flagged_ood"}),
    ],
)
def test_what_was_not_asked_for_is_not_measured(missing, names):
    assert set(measured(images(**{missing: None}), recorded=True)) == IMAGES - names


# What is measured: maps


MAPS = {
    "rmse_authors", "image_coverage", "image_coverage_low", "spearman_sweep", "auroc_ood", "auroc_ood_map",
    "auroc_adversarial", "auroc_adversarial_map",
}  # fmt: skip
"""What benchmarks record of maps beside `REGRESSION`."""


def maps(**changes):
    """Forty pixels of four images, whose own scores are the reverse of the means of their maps."""
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def rows(support, epistemic):
        return Prediction(epistemic, epistemic, epistemic, None, support=support)

    parts = {
        "rows": rows(scores, scores.flip(0)),
        "ood": rows(torch.tensor([5.0, 2.5]), torch.tensor([0.5, 0.0])),
        "adversarial": rows(scores + 0.5, scores - 5),
        "attack": {"strength": [0.0, 0.1, 0.2], "rmse": [1.0, 3.0, 2.0], "epistemic": [0.1, 0.2, 0.3]},
        "coverage": torch.tensor([1.0, 0.5, math.nan, 0.9, 0.0]),
    }
    return Evidence(numbers(normal=False), target(), **parts | changes)


def test_maps_by_hand():
    found = measured(maps(), recorded=True)
    assert set(found) == REGRESSION | MAPS
    assert found["image_coverage"] == pytest.approx(0.6)
    assert found["image_coverage_low"] == pytest.approx(0.15)
    assert found["spearman_sweep"] == pytest.approx(0.5)
    assert (found["auroc_ood"], found["auroc_ood_map"]) == (6 / 8, 0)
    assert (found["auroc_adversarial"], found["auroc_adversarial_map"]) == (10 / 16, 0)
    assert found["rmse_authors"] == pytest.approx(float((numbers().mean - target()).abs().mean()))


def test_the_root_of_sds_is_followed_where_there_is_one():
    attack = maps().attack | {"sds": [3.0, 1.0, 2.0]}
    assert measured(maps(attack=attack))["spearman_sweep_sds"] == pytest.approx(-1)
    assert "spearman_sweep_sds" not in measured(maps())


def test_what_only_maps_have_is_not_measured_of_rows():
    found = measured(maps(coverage=None), recorded=True)
    assert set(found) == REGRESSION | {"spearman_sweep", "auroc_ood", "auroc_adversarial"}


def test_only_sets_have_a_size():
    sets = Conformity(torch.full((3, 19), -0.25))  # of all classes with at least that probability
    found = measured(Evidence(replace(TEST, conformity=sets), torch.tensor([0, 0, 1, 1])))
    assert (found["set_coverage"], found["set_size"]) == (1.0, 1.5)
    few = Conformity(torch.full((3, 18), -0.25))
    for without in (images(), Evidence(replace(TEST, conformity=few), torch.tensor([0, 0, 1, 1]))):
        assert not {"set_coverage", "set_size"} & set(measured(without))


# Scores of rows, and a metric of one's own


def test_scores_of_rows_are_means_over_outputs_and_positions():
    score = torch.arange(12.0).reshape(2, 1, 2, 3)
    maps = replace(numbers(2), epistemic=score, aleatoric=2 * score, total=3 * score)
    rows = row_scores(maps)
    assert (rows.epistemic.tolist(), rows.aleatoric.tolist(), rows.total.tolist()) == ([2.5, 8.5], [5, 17], [7.5, 25.5])
    assert rows.epistemic.dtype == torch.float64
    flat = row_scores(TEST)
    assert torch.equal(flat.epistemic, TEST.epistemic.double())
    assert len(row_scores(TEST[:0])) == 0


def test_scores_of_rows_take_the_place_of_those_of_the_prediction():
    found = measured(images(rows=TEST[:2]))
    assert found["auroc_ood"] == 1.0  # without the rows that score 0.3 and 0.5
    assert found["flagged_test"] == 0.0
    assert found["accuracy"] == 0.75


def test_a_metric_of_ones_own_is_a_function_and_a_line(monkeypatch):
    def bias(prediction, target):
        return float((prediction.mean - target).mean())

    entry = Metric("bias", metrics.on_targets(bias), "Bias", "none", "Mean error.", task="regression", unit="target")
    monkeypatch.setitem(METRICS, "bias", entry)
    own = numbers()
    assert measured(Evidence(own, own.mean - 2, 10.0), recorded=True)["bias"] == pytest.approx(20)
    assert "bias" not in measured(images())
    assert ordered(["bias", "rmse", "unheard_of"])[1] is metric("bias") is entry
