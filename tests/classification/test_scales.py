"""Logits of any size, and rows of classes that are worked on in pieces."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint import conformal
from splitpoint.calibration import probable_factor
from splitpoint.classification.correction import fit_correction
from splitpoint.conformal import calibration_scores, pieces


class Scaled(nn.Module):
    """A network whose logits are `a` times as large."""

    def __init__(self, a):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
        self.a = a

    def forward(self, x):
        return self.a * self.net(x)


def rows(seed, count):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, torch.multinomial(Scaled(3)(x).detach().softmax(1), 1, generator=generator).flatten()


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("mars", ["simplex", "free"])
@pytest.mark.parametrize("a", [1e-30, 1e10, 1e30])
def test_logits_of_any_size_have_finite_scores(a, mars, calibrated):
    held_out = rows(1, 100) if calibrated else None
    clf = sp.SplitPointClassifier(epochs=2, mars=mars).fit(
        Scaled(a), rows(0, 200), calibration=held_out, progress=False
    )
    out = clf.set_threshold(rows(2, 100)[0], quantile=0.9)(rows(3, 50)[0])
    for name in ("probs", "aleatoric", "epistemic", "total", "support", "sds", "mar"):
        assert getattr(out, name).isfinite().all(), name
    torch.testing.assert_close(out.probs.sum(1), torch.ones(50))
    assert 0 < int(clf(rows(4, 200)[0]).flagged.sum()) < 60


def test_pieces_are_all_rows_in_order_and_of_many_classes_one_by_one():
    assert pieces(torch.zeros(5, 3)) == [slice(0, conformal.PIECE // 3)]
    assert [own.stop - own.start for own in pieces(torch.empty(3, conformal.PIECE))] == [1, 1, 1]
    assert pieces(torch.empty(0, 3))[0].start == 0


def test_what_is_worked_out_in_pieces_is_what_is_worked_out_at_once(monkeypatch):
    x, label = rows(0, 300)
    logits = 3 * Scaled(1)(x).detach()

    def found():
        correction = fit_correction(logits, x, label, 0.5, torch.Generator().manual_seed(0))
        return [*correction, probable_factor(logits, label), calibration_scores(logits.softmax(1), label)]

    at_once = found()
    monkeypatch.setattr(conformal, "PIECE", 4 * 7)
    assert len(pieces(logits)) == 43
    for one, other in zip(found(), at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
