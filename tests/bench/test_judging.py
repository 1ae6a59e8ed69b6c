"""The figures of image experiments, by hand."""

import base64
import io
import math

import pytest
import torch

from splitpoint.bench.judging import Views, histogram, measured, png, sheet, shrunk, under_attack
from splitpoint.bench.pictures import CURVE, STRENGTHS, TABLE_STRENGTH
from splitpoint.prediction import ClassificationPrediction


def prediction(probs, epistemic):
    probs = torch.tensor(probs)
    entropy = -(probs * probs.clamp(min=1e-30).log()).sum(1)
    score = torch.tensor(epistemic)
    scores = {"aleatoric": entropy, "epistemic": score, "total": entropy + score}
    return ClassificationPrediction(probs=probs, base_probs=probs, label=probs.argmax(1), reference=None, **scores)


TEST = prediction([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0.1, 0.2, 0.5, 0.3])
LABELS = torch.tensor([0, 0, 1, 1])
ADVERSARIAL = prediction([[0.6, 0.4], [0.55, 0.45], [0.5, 0.5], [0.45, 0.55]], [0.4, 0.6, 0.7, 0.05])
OUTSIDE = prediction([[0.9, 0.1], [0.9, 0.1]], [0.9, 0.25])
ATTACK = {"strength": [0.0, 0.1, 0.2], "accuracy": [0.75, 0.5, 0.25], "epistemic": [0.1, 0.4, 0.3]}


@pytest.fixture
def views():
    return Views(LABELS, TEST, ADVERSARIAL, OUTSIDE, ATTACK, threshold=0.45)


def test_metrics_by_hand(views):
    found = measured(views)
    assert found["accuracy"] == 0.75
    assert found["nll"] == pytest.approx(-sum(map(math.log, (0.9, 0.8, 0.4, 0.7))) / 4, rel=1e-5)
    assert found["brier"] == pytest.approx(sum(2 * miss**2 for miss in (0.1, 0.2, 0.6, 0.3)) / 4, rel=1e-5)
    assert found["ece"] == pytest.approx((0.1 + 0.2 + 0.6 + 0.3) / 4, rel=1e-5)
    assert found["auroc_error"] == found["auroc_error_entropy"] == found["auroc_error_epistemic"] == 1.0
    # of the 16 pairs the attacked score is the higher one in 3 + 4 + 4 + 0
    assert found["auroc_adversarial"] == pytest.approx(11 / 16)
    # 0.9 beats all four, 0.25 beats two
    assert found["auroc_ood"] == pytest.approx(6 / 8)
    # all outside entropies equal the lowest test entropy: one tie each
    assert found["auroc_ood_entropy"] == pytest.approx(0.5 / 4)
    assert (found["flagged_test"], found["flagged_ood"]) == (0.25, 0.5)
    assert found["spearman_attack"] == pytest.approx(-0.5)


def test_errors_cannot_be_told_where_there_are_none(views):
    right = Views(TEST.label, TEST, ADVERSARIAL, OUTSIDE, ATTACK, 0.45)
    assert math.isnan(measured(right)["auroc_error"])


class Fake:
    """A predictor that says class 0 above 0.5 and doubts by the value itself."""

    def __call__(self, rows):
        return prediction([[float(v > 0.5), float(v <= 0.5)] for v in rows[:, 0]], rows[:, 0].tolist())


class Stream:
    strengths = STRENGTHS

    def parts(self):
        for start in (0, 2):
            for strength in self.strengths:
                yield strength, slice(start, start + 2)


def test_accuracy_and_doubt_along_the_curve_from_a_stream():
    stream = [torch.full((2, 1), 1.0 - strength) for _ in range(2) for strength in STRENGTHS]
    labels = torch.tensor([0, 0, 0, 1])
    kept, attack = under_attack(Fake(), Stream(), stream, labels)
    assert attack["strength"] == list(CURVE)
    assert attack["accuracy"] == [0.75] * len(CURVE)
    assert attack["epistemic"] == pytest.approx([1 - strength for strength in CURVE])
    assert set(kept) == {0.0, TABLE_STRENGTH}
    assert len(kept[0.0]) == 4
    assert kept[TABLE_STRENGTH].epistemic.tolist() == pytest.approx([1 - TABLE_STRENGTH] * 4)


def test_curves_have_eleven_steps_and_the_table_one_of_its_own():
    assert pytest.approx([0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.24, 0.28, 0.32, 0.36, 0.4]) == CURVE
    assert TABLE_STRENGTH == 0.02
    assert set(STRENGTHS) == {*CURVE, TABLE_STRENGTH}


def test_a_histogram_has_logarithmic_bins_for_positive_scores_and_counts_everything():
    inside, outside = torch.tensor([1e-6, 1e-4, 0.0]), torch.tensor([1e-2, 1.0])
    found = histogram(inside, outside, 0.01)
    assert found["logarithm"]
    assert (found["edges"][0], found["edges"][-1]) == pytest.approx((-6, 0))
    assert (sum(found["inside"]), sum(found["outside"])) == pytest.approx((1, 1))
    assert found["threshold"] == pytest.approx(-2)
    linear = histogram(torch.tensor([-1.0, 0.0]), torch.tensor([1.0]), 0.5)
    assert (linear["logarithm"], linear["edges"][0], linear["threshold"]) == (False, -1.0, 0.5)


def test_equal_scores_make_a_histogram_too():
    found = histogram(torch.zeros(3), torch.zeros(2), 0.0)
    assert sum(found["inside"]) == pytest.approx(1)


@pytest.mark.parametrize("channels", [1, 3])
def test_thumbnails_are_the_pictures(channels):
    image = pytest.importorskip("PIL.Image")
    picture = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    opened = image.open(io.BytesIO(base64.b64decode(png(picture))))
    expected = picture[0] if channels == 1 else picture.movedim(0, 2)
    assert list(opened.tobytes()) == expected.flatten().tolist()


def test_large_pictures_become_small_ones():
    assert shrunk(torch.full((3, 224, 112), 7, dtype=torch.uint8)).shape == (3, 64, 32)
    small = torch.randint(0, 256, (1, 28, 28), dtype=torch.uint8)
    assert torch.equal(shrunk(small), small)


class Pictures:
    labels = LABELS

    def pixels(self, places):
        return (10 * places).to(torch.uint8).reshape(-1, 1, 1, 1)


def test_a_sheet_shows_the_most_and_the_least_doubted_pictures(views):
    found = sheet("short", "mnist/lenet", "mine", views, Pictures(), None)
    assert (found["dataset"], found["method"], found["attack"]) == ("mnist/lenet", "mine", ATTACK)
    assert [shown["label"] for shown in found["thumbnails"]["most doubted, test"]] == [1, 1, 0, 0]
    assert found["thumbnails"]["least doubted, test"][0]["picture"] == png(torch.zeros(1, 1, 1, dtype=torch.uint8))
    assert "outside" not in " ".join(found["thumbnails"])
    assert sum(found["reliability"]["count"]) == 4
