"""What pages draw of image experiments: shares, bins and thumbnails, by hand."""

import base64
import io

import pytest
import torch

from splitpoint.bench.drawings import drawing, histogram, png, shrunk
from splitpoint.bench.image_trials import ImageTrial
from splitpoint.bench.record import Cell
from splitpoint.metrics import Evidence
from splitpoint.prediction import ClassificationPrediction


def prediction(probs, epistemic):
    probs = torch.tensor(probs)
    entropy = -(probs * probs.clamp(min=1e-30).log()).sum(1)
    score = torch.tensor(epistemic)
    scores = {"aleatoric": entropy, "epistemic": score, "total": entropy + score}
    return ClassificationPrediction(probs=probs, base_probs=probs, label=probs.argmax(1), reference=None, **scores)


TEST = prediction([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0.1, 0.2, 0.5, 0.3])
LABELS = torch.tensor([0, 0, 1, 1])
OOD = prediction([[0.9, 0.1], [0.9, 0.1]], [0.9, 0.25])
ATTACK = {"strength": [0.0, 0.1, 0.2], "accuracy": [0.75, 0.5, 0.25], "epistemic": [0.1, 0.4, 0.3]}


def test_a_histogram_has_logarithmic_bins_for_positive_scores_and_counts_everything():
    test, ood = torch.tensor([1e-6, 1e-4, 0.0]), torch.tensor([1e-2, 1.0])
    found = histogram(test, ood, 0.01)
    assert found.logarithm
    assert (found.edges[0], found.edges[-1]) == pytest.approx((-6, 0))
    assert (sum(found.test), sum(found.ood)) == pytest.approx((1, 1))
    assert found.threshold == pytest.approx(-2)
    linear = histogram(torch.tensor([-1.0, 0.0]), torch.tensor([1.0]), 0.5)
    assert (linear.logarithm, linear.edges[0], linear.threshold) == (False, -1.0, 0.5)


def test_equal_scores_make_a_histogram_too():
    found = histogram(torch.zeros(3), torch.zeros(2), 0.0)
    assert sum(found.test) == pytest.approx(1)


@pytest.mark.parametrize("channels", [1, 3])
def test_thumbnails_are_the_images(channels):
    pillow = pytest.importorskip("PIL.Image")
    image = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    opened = pillow.open(io.BytesIO(base64.b64decode(png(image))))
    expected = image[0] if channels == 1 else image.movedim(0, 2)
    assert list(opened.tobytes()) == expected.flatten().tolist()


def test_large_images_become_small_ones():
    assert shrunk(torch.full((3, 224, 112), 7, dtype=torch.uint8)).shape == (3, 64, 32)
    small = torch.randint(0, 256, (1, 28, 28), dtype=torch.uint8)
    assert torch.equal(shrunk(small), small)


class Greys:
    """Images of one pixel, brighter from one to the next."""

    labels = LABELS

    def pixels(self, places):
        return (10 * places).to(torch.uint8).reshape(-1, 1, 1, 1)


def test_the_most_and_the_least_doubted_images_are_shown():
    evidence = Evidence(TEST, LABELS, ood=OOD, attack=ATTACK, threshold=0.45)
    cell = Cell("images", "short", "clean", "mnist", "mine", network="lenet")
    found = drawing(cell, evidence, calibrated=True, shown=ImageTrial(None, None, Greys(), Greys()))
    assert (found.cell, found.attack.strength, found.calibrated) == (cell, (0.0, 0.1, 0.2), True)
    least, most, *others = found.thumbnails
    assert (least.title, most.title) == ("least doubted, test", "most doubted, test")
    assert [shown.label for shown in most.images] == [1, 1, 0, 0]
    assert [shown.predicted for shown in most.images] == [0, 1, 0, 0]
    assert least.images[0].image == png(torch.zeros(1, 1, 1, dtype=torch.uint8))
    assert [group.title for group in others] == [
        "least doubted, out of distribution",
        "most doubted, out of distribution",
    ]
    assert [group.ood for group in found.thumbnails] == [False, False, True, True]
    assert sum(found.reliability.count) == 4
    assert drawing(cell, evidence, calibrated=False).thumbnails == ()
