"""Conflict and blame: hand numbers, counts of draws, and what must hold of any opinions."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitpoint.agreement.opinions import blame, conflict, left_out, mixed

THREE = torch.tensor([[[0.7, 0.2, 0.1]], [[0.1, 0.3, 0.6]]], dtype=torch.float64)
"""Two modalities, one row, three classes."""


def opinions(modalities, rows, classes, seed=0):
    logits = 3 * torch.randn(modalities, rows, classes, generator=torch.Generator().manual_seed(seed))
    return mixed(logits.double().softmax(2), 0.02)


def test_two_modalities_by_hand():
    both = 0.7 * 0.1 + 0.2 * 0.3 + 0.1 * 0.6  # 0.19
    assert conflict(THREE.log()).item() == pytest.approx(-math.log(3 * both))
    np.testing.assert_allclose(blame(THREE.log()), [[-math.log(3 * both)] * 2])


def test_three_modalities_by_hand():
    third = torch.tensor([[[0.6, 0.3, 0.1]]], dtype=torch.float64)
    said = torch.cat([THREE, third])
    product = [0.7 * 0.1 * 0.6, 0.2 * 0.3 * 0.3, 0.1 * 0.6 * 0.1]  # 0.042, 0.018, 0.006
    assert conflict(said.log()).item() == pytest.approx(-math.log(9 * 0.066))
    others = 0.42 + 0.06 + 0.01  # of the first and the third
    expected = -math.log(3 * sum(product) / others)
    assert blame(said.log())[0, 1].item() == pytest.approx(expected)
    assert blame(said.log()).argmax().item() == 1


def test_the_uniform_law_is_mixed_in():
    torch.testing.assert_close(
        mixed(torch.tensor([1.0, 0.0, 0.0, 0.0]), 0.02).exp(), torch.tensor([0.985, *[0.005] * 3])
    )


def test_the_conflict_is_the_chance_that_draws_from_all_opinions_agree():
    said = opinions(3, 1, 4).exp()[:, 0].numpy()
    agree = sum(
        said[0, a] * said[1, b] * said[2, c] for a, b, c in itertools.product(range(4), repeat=3) if a == b == c
    )
    assert conflict(opinions(3, 1, 4)).item() == pytest.approx(-math.log(agree * 16))


@given(st.integers(2, 5), st.integers(2, 6), st.integers(0, 1000))
def test_what_holds_of_any_opinions(modalities, classes, seed):
    said = opinions(modalities, 4, classes, seed)
    whole, each = conflict(said), blame(said)
    silent = torch.full_like(said[:1], -math.log(classes))
    more = torch.cat([said, silent])
    torch.testing.assert_close(conflict(more), whole)  # who says nothing changes nothing, and has no blame
    torch.testing.assert_close(blame(more)[:, :-1], each)
    torch.testing.assert_close(blame(more)[:, -1], torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)
    order = torch.randperm(modalities, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(conflict(said[order]), whole)
    torch.testing.assert_close(blame(said[order]), each[:, order])
    kinds = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(conflict(said[:, :, kinds]), whole)
    torch.testing.assert_close(blame(said[:, :, kinds]), each)
    for number in range(modalities):  # C of all = C of the others + blame of the one
        rest = conflict(torch.cat([said[:number], said[number + 1 :]])) if modalities > 1 else 0
        torch.testing.assert_close(whole, rest + each[:, number])


def test_one_uniform_of_two_leaves_no_conflict_and_a_sure_contradiction_is_bounded():
    uniform = torch.full((1, 3, 5), 0.2, dtype=torch.float64).log()
    assert conflict(torch.cat([uniform, opinions(1, 3, 5)])).abs().max() < 1e-12
    sure = mixed(torch.eye(5, dtype=torch.float64)[:2].unsqueeze(1), 0.02)
    assert torch.isfinite(conflict(sure)).all()
    assert conflict(sure).item() > 3


def test_many_modalities_and_classes_stay_finite():
    said = mixed(torch.eye(1000, dtype=torch.float64)[:50].unsqueeze(1), 1e-6)
    assert torch.isfinite(conflict(said)).all()
    assert torch.isfinite(blame(said)).all()


def test_a_missing_modality_is_left_out_row_by_row():
    said = opinions(3, 2, 4)
    missing = torch.tensor([[False, True, False], [False, False, False]])
    found = left_out(said, missing)
    torch.testing.assert_close(conflict(found)[0], conflict(said[[0, 2]])[0])
    torch.testing.assert_close(conflict(found)[1], conflict(said)[1])
    assert blame(found)[0, 1].abs() < 1e-12
