"""Prediction sets: scores by hand, the theorem's coverage, and the sets of MAPIE for the same probabilities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import APSConformityScore, LACConformityScore, RAPSConformityScore
from sklearn.base import BaseEstimator, ClassifierMixin

from properties import examples
from splitpoint.conformal import (
    FREE_CLASSES,
    KEPT,
    PENALTY,
    SET_SCORES,
    Conformity,
    calibration_scores,
    class_scores,
    conformal_factor,
    label_scores,
)
from splitpoint.errors import DataError, SettingsError

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
every_score = pytest.mark.parametrize("score", SET_SCORES)


def drawn(rows, classes=10, sharpness=2.0, seed=0, dtype=torch.float64):
    """Overconfident probabilities of rows, and labels of a law with half the logits."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    label = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
    return logits.softmax(1).to(dtype), label


def confident(rows, classes=150, seed=0):
    """Float32 logits of a network of many classes that is right nine times in ten and sure of most rows."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (rows,), generator=generator)
    logits = 5 * torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), label] += 21
    return logits, label


def covered(sets, label):
    return float(sets.gather(1, label[:, None]).double().mean())


# Scores by hand


def test_scores_of_classes_by_hand():
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64)
    lac, aps = class_scores(probs, "lac") + 1, class_scores(probs, "aps") + 1
    torch.testing.assert_close(lac, 1 - probs)
    torch.testing.assert_close(aps, torch.tensor([[0.8, 0.0, 0.5], [0.8, 0.8, 0.0]], dtype=torch.float64))
    raps = class_scores(probs, "raps", free=1, penalty=0.1) + 1
    torch.testing.assert_close(raps, torch.tensor([[0.9, 0.0, 0.5], [0.8, 0.8, 0.0]], dtype=torch.float64))


def test_scores_of_labels_by_hand():
    probs = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).expand(4, 4)
    label = torch.arange(4)
    torch.testing.assert_close(label_scores(probs, label, "lac") + 1, 1 - probs[0])
    expected = torch.tensor([0.0, 0.5, 0.8, 0.95], dtype=torch.float64)
    torch.testing.assert_close(label_scores(probs, label, "aps") + 1, expected)
    costs = torch.tensor([0.0, 0.0, 0.1, 0.2], dtype=torch.float64)
    torch.testing.assert_close(label_scores(probs, label, "raps", free=2, penalty=0.1) + 1, expected + costs)


def test_scores_tell_apart_what_rounding_makes_one():
    """All but 1e-9 is with the first class: in float32 sums of probabilities are 1 from the first class on."""
    probs = torch.tensor([[1.0, 1e-9, 1e-12, 1e-20]])
    found = class_scores(probs, "aps")[0]
    assert found.tolist() == pytest.approx([-1, -1e-9 - 1e-12, -1e-12, -1e-20], rel=1e-6)
    assert (found[1:] > found[:-1]).all()


@pytest.mark.parametrize(("shape", "axis"), [((2, 5, 3, 4), 1), ((2, 3, 5), -1), ((7, 5), 1), ((7, 5), -1)])
@every_score
def test_scores_of_maps_are_those_of_their_positions(score, shape, axis):
    probs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).softmax(axis)
    found = class_scores(probs, score, axis)
    assert found.shape == probs.shape
    rows = probs.movedim(axis, -1).reshape(-1, 5)
    torch.testing.assert_close(found.movedim(axis, -1).reshape(-1, 5), class_scores(rows, score))


@given(st.lists(st.integers(1, 6), min_size=2, max_size=12), st.randoms(use_true_random=False))
@examples(40)
def test_scores_follow_their_classes_in_any_order_ties_included(weights, random):
    probs = torch.tensor([weights], dtype=torch.float64) / sum(weights)
    order = torch.tensor(random.sample(range(len(weights)), len(weights)))
    for score in SET_SCORES:
        found = class_scores(probs, score)
        torch.testing.assert_close(class_scores(probs[:, order], score), found[:, order])
        exceeding = torch.tensor([sum(w for w in weights if w > own) / sum(weights) for own in weights])
        if score == "aps":
            torch.testing.assert_close(found[0].float() + 1, exceeding)


# The quantile


def test_the_rank_counts_one_row_more_by_hand():
    """Of nine true classes with p = 0.1 to 0.9, level 0.5 takes the 5th smallest 1 - p, 0.8 the 8th, 0.9 the last."""
    true = torch.arange(1, 10, dtype=torch.float64) / 10
    probs = torch.stack([true, 1 - true], 1)
    conformity = Conformity(calibration_scores(probs, torch.zeros(9).long()))
    fresh = torch.tensor([[0.55, 0.45], [0.15, 0.85], [0.05, 0.95]])
    assert conformity.sets(fresh, 0.5).tolist() == [[True, False], [False, True], [False, True]]  # p >= 0.5
    assert conformity.sets(fresh, 0.8).tolist() == [[True, True], [False, True], [False, True]]  # p >= 0.2
    assert conformity.sets(fresh, 0.9).tolist() == [[True, True], [True, True], [False, True]]  # p >= 0.1
    with pytest.raises(DataError, match=r"Expected at least 10 calibration rows .* level 0.901, but got 9") as error:
        conformity.sets(fresh, 0.901)
    assert str(error.value).count(". ") == 0


def test_least_ambiguous_sets_can_be_empty_and_adaptive_ones_never_are():
    probs, label = torch.tensor([[0.9, 0.06, 0.04]]).repeat(30, 1), torch.zeros(30).long()
    conformity = Conformity(calibration_scores(probs, label))
    doubtful = torch.tensor([[0.4, 0.35, 0.25]])
    assert conformity.sets(doubtful, 0.9).tolist() == [[False, False, False]]
    for score in ("aps", "raps"):
        assert conformity.sets(doubtful, 0.9, score).tolist() == [[True, False, False]]


def test_the_same_row_has_the_same_set_though_it_was_rounded():
    probs = torch.tensor([[0.6, 0.3, 0.1]]).repeat(40, 1)
    conformity = Conformity(calibration_scores(probs, torch.ones(40).long()))
    for score in SET_SCORES:
        for rounded in (probs[:1], probs[:1] * (1 - 2e-7), probs[:1].double() + 1e-8):
            assert conformity.sets(rounded, 0.9, score).tolist() == [[True, True, False]]


@every_score
def test_many_rows_are_kept_as_order_statistics_with_the_same_quantiles(score):
    probs, label = drawn(54_321, 4)
    kept = calibration_scores(probs, label)
    assert kept.shape == (3, KEPT)
    assert (kept.diff(dim=1) >= 0).all()
    own, all_scores = kept[SET_SCORES.index(score)], label_scores(probs, label, score)
    for level in (0.0001, 0.25, 0.5, 0.9, 0.95, 0.9876, 0.9999):
        assert float(conformal_factor(own, level)) == pytest.approx(
            float(conformal_factor(all_scores, level)), rel=1e-6
        )
    for level in (0.12345, 0.99999 / 1.001):  # in between: never below, and not by more than one step of 10,000
        found = float(conformal_factor(own, level))
        assert found >= float(conformal_factor(all_scores, level)) - 1e-6
        assert found <= float(conformal_factor(all_scores, level + 1.1e-4)) + 1e-6


# Coverage


@every_score
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_coverage_has_the_mean_of_the_theorem(score, level):
    """Averaged over draws of calibration rows and of fresh ones: k / (n + 1) with k = ceil((n + 1) level), or more."""
    n, draws, fresh = 59, 400, 50
    found = []
    for seed in range(draws):
        probs, label = drawn(n + fresh, 6, seed=seed)
        conformity = Conformity(calibration_scores(probs[:n], label[:n]))
        found.append(covered(conformity.sets(probs[n:], level, score), label[n:]))
    target, error = math.ceil((n + 1) * level) / (n + 1), np.std(found) / math.sqrt(draws)
    assert np.mean(found) > target - 4 * error
    if score == "lac":  # continuous scores; those of the others have an atom where the top class is right
        assert np.mean(found) < target + 4 * error


def test_a_confident_network_of_many_classes_has_small_sets():
    """Where sums that count a class itself reach 1, its sets hold a third of the classes; these do not."""
    logits, label = confident(6000)
    probs = logits.softmax(1)
    assert (probs.argmax(1) == label).double().mean() > 0.88
    assert (probs.amax(1) > 0.999).double().mean() > 0.5
    ordered, order = probs.sort(1, descending=True)
    sums = torch.zeros_like(probs).scatter(1, order, ordered.cumsum(1).clamp(max=1))
    radius = conformal_factor(sums[:2000].gather(1, label[:2000, None])[:, 0], 0.95)
    assert float(radius) > 1 - 1e-6
    assert (sums[2000:] <= radius).sum(1).double().mean() > 40
    conformity = Conformity(calibration_scores(probs[:2000], label[:2000]))
    for score in SET_SCORES:
        sets = conformity.sets(probs[2000:], 0.95, score)
        assert sets.sum(1).double().mean() < 1.5
        assert covered(sets, label[2000:]) == pytest.approx(0.95, abs=0.015)


# MAPIE


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose inputs are the probabilities."""

    def __init__(self, classes=2):
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, x, y):
        return self

    def predict_proba(self, x):
        return np.asarray(x)

    def predict(self, x):
        return np.asarray(x).argmax(1)

    def __sklearn_is_fitted__(self):
        return True


class Ones(np.random.RandomState):
    """Draws that leave nothing to chance: MAPIE subtracts each times the label's own probability from its score."""

    def uniform(self, low=0.0, high=1.0, size=None):
        return np.ones(size)


def regularised(free, penalty):
    """MAPIE's RAPS with given constants; those that it finds by itself where there are none."""

    class Fixed(RAPSConformityScore):
        def get_conformity_score_quantiles(self, conformity_scores, alpha_np, cv, **kwargs):
            found = super().get_conformity_score_quantiles(conformity_scores, alpha_np, cv, **kwargs)
            if free is None:
                return found
            self.k_star, self.lambda_star = np.full(len(alpha_np), free), penalty
            again = self._regularize_conformity_score(self.k_star, penalty, conformity_scores, self.cutoff)
            n = len(again)
            ranks = np.ceil((n + 1) * (1 - alpha_np) - 1e-9).astype(int) - 1
            return np.array([np.sort(again[:, 0, i])[rank] for i, rank in enumerate(ranks)])

    return Fixed(size_raps=0.2)


def mapie_sets(score, calibration, fresh, level):
    """MAPIE's sets (N, K) of fresh probabilities, with its default include_last_label=True."""
    probs, label = calibration
    found = SplitConformalClassifier(
        Given(probs.shape[1]), confidence_level=level, conformity_score=score, prefit=True, random_state=Ones(0)
    )
    found.conformalize(probs.numpy(), label.numpy())
    return torch.from_numpy(found.predict_set(fresh.numpy())[1][:, :, 0])


def apart(probs):
    """Whether no other class of the row is within 1e-8, which MAPIE takes as equally probable."""
    gaps = (probs.unsqueeze(1) - probs.unsqueeze(2)).abs() + torch.eye(probs.shape[1])
    return gaps.amin(2) > 1e-8


LAWS = [(2, 1.0), (4, 1.5), (10, 3.0), (60, 2.5)]
THEIRS = {"lac": LACConformityScore, "aps": APSConformityScore}
CASES = [(score, *law) for score in THEIRS for law in LAWS if (score, law[0]) != ("aps", 2)]  # refused by MAPIE


@pytest.mark.parametrize(("score", "classes", "sharpness"), CASES)
@pytest.mark.parametrize("level", LEVELS)
def test_sets_are_those_of_mapie(score, level, classes, sharpness):
    probs, label = drawn(1500, classes, sharpness, seed=classes)
    calibration, fresh = (probs[:600], label[:600]), probs[600:]
    conformity = Conformity(calibration_scores(*calibration))
    found, expected = conformity.sets(fresh, level, score), mapie_sets(THEIRS[score](), calibration, fresh, level)
    assert apart(fresh).double().mean() > 0.999
    assert torch.equal(found[apart(fresh)], expected[apart(fresh)])


def kept_by_mapie(score, calibration):
    """Calibration rows that are left after MAPIE has set some apart to choose its constants on."""
    probs, label = calibration
    apart = {row.tobytes() for row in score.X_raps}
    rows = torch.tensor([row.tobytes() not in apart for row in probs.numpy()])
    return probs[rows], label[rows]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sharpness", [1.0, 2.5])
def test_regularised_sets_are_those_of_mapie_at_our_constants(level, sharpness):
    probs, label = drawn(2500, 20, sharpness, seed=3)
    calibration, fresh = (probs[:1500], label[:1500]), probs[1500:]
    theirs = regularised(FREE_CLASSES, PENALTY)
    expected = mapie_sets(theirs, calibration, fresh, level)
    conformity = Conformity(calibration_scores(*kept_by_mapie(theirs, calibration)))
    assert torch.equal(conformity.sets(fresh, level, "raps"), expected)


@pytest.mark.parametrize("level", LEVELS)
def test_regularised_sets_are_those_of_mapie_at_its_own_constants(level):
    probs, label = drawn(2500, 20, 2.0, seed=5)
    calibration, fresh = (probs[:1500], label[:1500]), probs[1500:]
    theirs = regularised(None, None)
    expected = mapie_sets(theirs, calibration, fresh, level)
    constants = {"free": int(theirs.k_star[0]), "penalty": float(np.ravel(theirs.lambda_star)[0])}
    left = kept_by_mapie(theirs, calibration)
    radius = conformal_factor(label_scores(*left, "raps", **constants), level)
    assert torch.equal(class_scores(fresh, "raps", **constants) <= radius, expected)


# Refusals


def test_levels_and_scores_out_of_range_are_refused():
    probs, label = drawn(50, 3)
    conformity = Conformity(calibration_scores(probs, label))
    for level in (0, 1, -0.5, 95, float("nan")):
        with pytest.raises(SettingsError, match=r"Expected a level in \(0, 1\), but got"):
            conformity.sets(probs, level)
    with pytest.raises(SettingsError, match=r"Expected method to be one of \('lac', 'aps', 'raps'\), but got 'topk'"):
        conformity.sets(probs, 0.9, "topk")


def test_a_level_for_metrics_needs_its_rows():
    assert not Conformity(torch.zeros(3, 18)).enough
    assert Conformity(torch.zeros(3, 19)).enough
    assert Conformity(torch.zeros(3, 18), level=0.9).enough
