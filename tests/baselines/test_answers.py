"""Answers: moments, quantiles and scores of predictive distributions, worked out by hand or by SciPy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from splitpoint.baselines.answers import (
    central_quantiles,
    mixture_answer,
    mixture_of_normals,
    normal_answer,
    quantile_answer,
    softmax_answer,
)
from splitpoint.layout import Layout


def test_a_normal_answer_has_normal_bounds():
    mean, noise, doubt = torch.tensor([[1.0], [-2.0]]), torch.tensor([[4.0], [1.0]]), torch.tensor([[5.0], [0.0]])
    answer = normal_answer(mean, noise, doubt, (0.5, 0.95))
    law = stats.norm([[1], [-2]], [[3], [1]])
    for place, level in enumerate((0.5, 0.95)):
        low, high = law.interval(level)
        torch.testing.assert_close(answer.lowers[..., place], torch.tensor(low).float())
        torch.testing.assert_close(answer.uppers[..., place], torch.tensor(high).float())
    assert answer.total.tolist() == [[9], [1]]
    assert answer.scale.tolist() == [[3], [1]]


def test_moments_of_a_mixture_by_hand():
    answer = mixture_of_normals(torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[[0.5]], [[1.5]]]), (0.95,))
    assert (answer.mean.item(), answer.aleatoric.item(), answer.epistemic.item()) == (2, 1, 1)
    assert answer.total.item() == 2


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 4)), min_size=1, max_size=6))
def test_moments_of_a_mixture_are_those_of_its_second_moments(parts):
    means, variances = torch.tensor(parts, dtype=torch.float64).T.reshape(2, -1, 1, 1)
    answer = mixture_of_normals(means, variances, (0.9,))
    second = sum(mu**2 + var for mu, var in parts) / len(parts)
    assert answer.total.item() == pytest.approx(second - (sum(mu for mu, _ in parts) / len(parts)) ** 2, abs=1e-9)


def test_mutual_information_by_hand():
    """Two sure members that disagree: one bit in all, none within."""
    sure = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    answer = mixture_answer(sure)
    assert answer.epistemic.item() == pytest.approx(math.log(2))
    assert answer.total.item() == pytest.approx(math.log(2))
    assert mixture_answer(sure[:1].repeat(2, 1, 1)).epistemic.item() == 0
    mixed = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]])
    within = (stats.entropy([0.9, 0.1]) + stats.entropy([0.5, 0.5])) / 2
    assert mixture_answer(mixed).epistemic.item() == pytest.approx(stats.entropy([0.7, 0.3]) - within, rel=1e-5)


def test_softmax_scores():
    answer = softmax_answer(torch.tensor([[0.7, 0.2, 0.1]]).log())
    assert answer.epistemic.item() == pytest.approx(0.3)
    assert answer.total.item() == pytest.approx(stats.entropy([0.7, 0.2, 0.1]))


@pytest.mark.parametrize("levels", [(0.95,), (0.5, 0.8, 0.9), tuple(i / 20 for i in range(1, 20))])
def test_quantile_levels_are_central(levels):
    found = central_quantiles(levels)
    expected = sorted([0.5, *((1 - p) / 2 for p in levels), *((1 + p) / 2 for p in levels)])
    assert found == pytest.approx(expected)
    assert len(found) == 2 * len(levels) + 1


def test_quantiles_become_bounds_in_order_even_when_they_cross():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    for order in (torch.arange(5), torch.tensor([3, 1, 4, 0, 2])):
        answer = quantile_answer(values[order].reshape(5, 1, 1), (0.5, 0.9), torch.tensor([[7.0]]))
        assert answer.mean.item() == 3
        assert answer.lowers[0, 0].tolist() == [2, 1]
        assert answer.uppers[0, 0].tolist() == [4, 5]
        assert (answer.aleatoric.item(), answer.total.item()) == (4, 11)


def test_answers_take_the_shape_of_the_output():
    flat = normal_answer(torch.zeros(3, 1), torch.ones(3, 1), torch.ones(3, 1), (0.5, 0.9))
    prediction = flat.prediction(Layout((False,), False, 1), torch.empty(3, device="meta"), None)
    assert prediction.mean.shape == (3,)
    assert prediction.lowers.shape == (3, 2)
    maps = softmax_answer(torch.randn(2, 4, 15)).prediction(
        Layout((False,), True, 1), torch.empty(2, 4, 3, 5, device="meta"), None
    )
    assert maps.probs.shape == (2, 4, 3, 5)
    assert maps.label.shape == maps.epistemic.shape == (2, 3, 5)
