"""Lights: off and enough to matter, fine, or nobody can tell; and how often chance alone turns one on."""

import math

import pytest
import torch

from splitpoint.prediction import ClassificationPrediction, RegressionPrediction
from splitpoint.verdicts.estimates import Mean, Share
from splitpoint.verdicts.judge import Reading, gathered, measure
from splitpoint.verdicts.judging import Finding, Question, overall, short
from splitpoint.verdicts.result import conclude
from splitpoint.verdicts.stream import Batch, Seen


def question(estimate, **more):
    settings = {"promise": 0.9, "worse": "low", "yellow": 0.05, "red": 0.1} | more
    return Question("coverage", estimate, says="Coverage", trouble="Calibrate.", **settings)


@pytest.mark.parametrize(
    ("hits", "of", "light"),
    [
        (900, 1000, "green"),
        (880, 1000, "green"),  # off by what hardly matters, however sure
        (88_000, 100_000, "green"),
        (830, 1000, "yellow"),
        (700, 1000, "red"),
        (17, 20, "unknown"),
        (10, 20, "red"),  # few rows are enough where much is wrong
        (0, 0, "unknown"),
    ],
)
def test_lights_of_a_share(hits, of, light):
    assert question(Share(float(hits), float(of))).light(0.05 / 20) == light


def test_the_more_is_asked_the_more_it_takes():
    asked = question(Share(172.0, 205.0), yellow=0.06)
    assert asked.light(0.05) == "yellow"
    assert asked.light(0.05 / 100) != "yellow"


def test_too_much_is_yellow_where_that_is_asked():
    asked = question(Share(1000.0, 1000.0), over=0.08, over_trouble="Too wide.")
    assert asked.light(0.01) == "yellow"
    assert conclude_one(asked).advice == "Too wide."
    assert question(Share(1000.0, 1000.0)).light(0.01) == "green"


def conclude_one(asked):
    from splitpoint.verdicts.judging import answered

    return answered(asked, 0.01)


def test_what_is_worth_nothing_unless_shown_to_be_is_not_green():
    assert question(Mean(0.52, 0.02), promise=0.5, proof=0.5).light(0.01) == "unknown"
    assert question(Mean(0.58, 0.02), promise=0.5, proof=0.5).light(0.01) == "green"
    assert question(Mean(math.nan, math.inf)).light(0.01) == "unknown"


def test_the_whole_is_as_grave_as_its_worst_and_open_where_what_matters_is():
    def of(*lights, key=False):
        return overall([Finding("name", light, "", key=key) for light in lights])

    assert of("green", "yellow", "red", "unknown") == "red"
    assert of("green", "yellow", "unknown", key=True) == "yellow"
    assert of("green", "unknown") == "green"
    assert of("green", "unknown", key=True) == "unknown"
    assert of("unknown") == "unknown"


def test_numbers_for_people():
    assert [short(value) for value in (0.0, -0.0, 0.00001, 12.345, 2e9)] == ["0", "0", "1e-05", "12.3", "2e+09"]


# Pages on answers that are exactly what they say


def seen(prediction, target, start):
    key = torch.arange(start, start + len(target))
    return Seen(prediction, target, key, None, Batch((torch.zeros(len(target), 1),), {}, None))


def right_numbers(rows, generator):
    """Normal targets with known scales, and their intervals."""
    scale = 0.5 + torch.rand(rows, generator=generator)
    target, mean = scale * torch.randn(rows, generator=generator), torch.zeros(rows)
    bounds = torch.tensor([0.6745, 1.6449]) * scale[:, None]
    scores = {"aleatoric": scale, "epistemic": scale, "total": scale}
    return RegressionPrediction(
        mean=mean, levels=(0.5, 0.9), lowers=-bounds, uppers=bounds, reference=None, **scores
    ), target


def right_classes(rows, generator):
    """Labels drawn from the probabilities."""
    probs = (2 * torch.randn(rows, 5, generator=generator)).softmax(1)
    label = torch.multinomial(probs, 1, generator=generator)[:, 0]
    spread = -(probs * probs.log()).sum(1)
    scores = {"aleatoric": spread, "epistemic": spread, "total": spread}
    return ClassificationPrediction(
        probs=probs, base_probs=probs, label=probs.argmax(1), reference=None, **scores
    ), label


@pytest.mark.parametrize("drawn", [right_numbers, right_classes])
@pytest.mark.parametrize("rows", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_answers_that_are_right_hardly_ever_turn_a_light_on(drawn, rows):
    """At most 5 pages of 100 are promised, 3 of these 60; 2 more may be by chance."""
    generator, lights = torch.Generator().manual_seed(5), []
    for _ in range(60):
        found = gathered([seen(*drawn(rows, generator), 0)], Reading())
        lights.append(conclude(measure(found, {}, None, []), {}, {}).light)
    assert sum(light in ("red", "yellow") for light in lights) <= 5
    assert rows < 1000 or lights.count("green") >= 55


def test_of_an_image_some_pixels_are_kept_and_they_are_no_independent_rows():
    """One error for each whole image: what 15 images of 1,000 pixels tell is what 15 numbers tell."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(15, 1, 25, 40, generator=generator) * 0.1 + torch.randn(15, 1, 1, 1, generator=generator)
    width = torch.full_like(target, 1.6449 * math.sqrt(1.01))
    scores = {"aleatoric": width, "epistemic": width, "total": width}
    prediction = RegressionPrediction(
        mean=torch.zeros_like(target),
        levels=(0.9,),
        lowers=-width[..., None],
        uppers=width[..., None],
        reference=None,
        **scores,
    )
    found = gathered([seen(prediction, target, 0)], Reading())
    assert len(found.entries.row) == 15 * 64
    part = measure(found, {}, None, [])[0]
    assert part.questions[0].estimate.of < 30
    assert conclude([part], {}, {}).light == "unknown"
