"""Conflicts that are found and modalities that are blamed: by hand, and against scikit-learn."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from splitpoint.metrics import blamed, right_blame, spoilt_aurocs


def test_spoilt_rows_are_told_from_the_same_rows_by_modality():
    known = torch.rand(50, generator=torch.Generator().manual_seed(0))
    spoilt = {"image": known + 0.2, "text": known.flip(0)}
    found = spoilt_aurocs(known, spoilt)
    for name, scores in spoilt.items():
        labels = [0] * 50 + [1] * 50
        assert found[name] == pytest.approx(roc_auc_score(labels, torch.cat([known, scores])))


def test_blame_is_counted_by_the_spoilt_modality():
    blame = {
        "image": torch.tensor([[3.0, 1, 2], [3, 1, 2], [0, 1, 2], [5, 4, 4]]),
        "audio": torch.tensor([[0.0, 1, 0]] * 2),
        "text": torch.tensor([[9.0, 1, 0]] * 3),
    }
    assert blamed(blame) == {"image": (0.75, 0, 0.25), "audio": (0, 1, 0), "text": (1, 0, 0)}
    assert right_blame(blame) == pytest.approx((0.75 + 1 + 0) / 3)
