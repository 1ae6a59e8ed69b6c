"""The energy score: its formula by SciPy, and what it sees that softmax does not."""

import numpy as np
import torch
from scipy.special import logsumexp
from torch import nn

from splitpoint.baselines import Energy, Softmax


def fitted(method):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return method.fit(model, (x, torch.arange(60) % 3), progress=False), model, x


def test_the_score_is_the_negative_log_sum_of_exponentials():
    predictor, model, x = fitted(Energy())
    expected = -logsumexp(model(x).detach().numpy(), axis=1)
    np.testing.assert_allclose(predictor.predict(x).epistemic, expected, rtol=1e-5)


def test_probabilities_and_entropy_are_those_of_the_softmax():
    energy, model, x = fitted(Energy())
    plain = Softmax().fit(model, (x, torch.arange(60) % 3), progress=False)
    for name in ("probs", "aleatoric", "total", "label"):
        torch.testing.assert_close(getattr(energy.predict(x), name), getattr(plain.predict(x), name))


def test_logits_that_all_fall_raise_it_although_probabilities_stay():
    predictor, model, x = fitted(Energy())
    before = predictor.predict(x)
    with torch.no_grad():
        model[2].bias -= 5
    after = predictor.predict(x)
    torch.testing.assert_close(after.probs, before.probs)
    torch.testing.assert_close(after.epistemic, before.epistemic + 5)
