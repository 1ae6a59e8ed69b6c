"""The weight of support in the total score: taken where it surely helps, and only there."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from splitpoint.classification.mix import CERTAIN, _placements, fit_mix


def drawn(seed, rows):
    return torch.randn(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_placements_average_to_the_auroc():
    score = drawn(0, 300).mul(4).round()
    wrong = drawn(1, 300) + 0.3 * score > 0
    expected = roc_auc_score(wrong, score)
    for part in _placements(score, wrong):
        assert float(part.mean()) == pytest.approx(expected)


def test_support_is_mixed_in_where_it_finds_the_errors():
    wrong = drawn(0, 600) > 1
    assert fit_mix(drawn(1, 600).abs(), wrong * 3.0 + drawn(2, 600).abs(), wrong) > 0


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_left_out(seed):
    """Two standard errors let pure noise in about once in forty; a weight it gets must be small."""
    wrong = drawn(seed, 400) > 0.8
    entropy = wrong + drawn(seed + 100, 400).abs()
    assert fit_mix(entropy, drawn(seed + 200, 400).abs(), wrong) <= 0.1


def test_too_few_errors_decide_nothing():
    wrong = torch.arange(500) < 9
    assert CERTAIN > 1
    assert fit_mix(drawn(0, 500), 100.0 * wrong, wrong) == 0
