"""Groups in classification: whole ones are held back, no fold divides one, and sets count them."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.classification.correction import cross_fit

ROWS, PATIENTS = 240, 24
WHO = torch.arange(ROWS) % PATIENTS


def rows(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 4, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(ROWS, generator=generator) > 0).long()


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
def test_scores_of_sets_are_those_of_groups():
    fitted = [
        sp.SplitPointClassifier(epochs=2).fit(
            network(), rows(0), calibration=rows(1), calibration_groups=own, progress=False
        )
        for own in (None, WHO)
    ]
    assert [uq.set_scores.shape[1] for uq in fitted] == [ROWS, PATIENTS]
    with pytest.raises(sp.DataError, match="Expected at least 99 calibration rows for conformal prediction at"):
        fitted[1](rows(2)[0]).sets(0.99)


def test_features_that_know_patients_by_heart_correct_no_probabilities():
    """Labels belong to the patient and a feature names the patient: other visits tell the label, other patients not."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(2, (PATIENTS,), generator=generator)[WHO]
    x, logits = nn.functional.one_hot(WHO).float() * PATIENTS**0.5, torch.zeros(ROWS, 2)
    plain, told = (cross_fit(logits, x, label, 2.0, torch.Generator().manual_seed(0), own)[0] for own in (None, WHO))
    assert bool(plain[2].any())
    assert not bool(told[2].any())
