"""Certificates on a trained model: strange rows stand out, and intervals are residual quantiles."""

import numpy as np
import pytest
import torch
from torch import nn

from splitpoint.baselines import OrthonormalCertificates
from splitpoint.errors import SettingsError


class Fixed(nn.Module):
    """A linear model on two features that always agree in training."""

    def __init__(self, outputs):
        super().__init__()
        self.last = nn.Linear(2, outputs)
        nn.init.constant_(self.last.weight, 0.5)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        return self.last(x)


def rows(count, seed):
    """Both features are the same number up to a hundredth; the residual of ``y`` is exponential."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, generator=generator).expand(-1, 2) + 0.01 * torch.randn(count, 2, generator=generator)
    noise = torch.empty(count, 1).exponential_(generator=generator)
    return x, x.mean(1, keepdim=True) + noise - 0.7


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_rows_that_break_a_rule_of_the_training_rows_stand_out(task):
    x, y = rows(500, 0)
    target, outputs = (y, 1) if task == "regression" else ((y[:, 0] > 0).long(), 2)
    predictor = OrthonormalCertificates(certificates=1).fit(Fixed(outputs), (x, target), progress=False)
    usual, larger = predictor.predict(x).epistemic, predictor.predict(5 * rows(50, 1)[0]).epistemic
    broken = predictor.predict(torch.tensor([[1.0, -1.0], [-0.5, 0.5]])).epistemic
    assert broken.min() > 100 * usual.max()
    assert broken.min() > 10 * larger.max()  # five times the size, but the rule holds


def test_intervals_are_residual_quantiles_of_the_calibration_data_where_given():
    levels = (0.5, 0.9)
    train, held_out = rows(400, 0), rows(300, 1)
    for calibration, (x, y) in ((None, train), (held_out, held_out)):
        method = OrthonormalCertificates(confidence_level=levels)
        prediction = method.fit(Fixed(1), train, calibration=calibration, progress=False).predict(train[0][:5])
        residual = (y - x.mean(1, keepdim=True)).numpy()
        for level in levels:
            lower, upper = prediction.interval(level)
            np.testing.assert_allclose(lower - prediction.mean, np.quantile(residual, (1 - level) / 2), rtol=1e-3)
            np.testing.assert_allclose(upper - prediction.mean, np.quantile(residual, (1 + level) / 2), rtol=1e-3)


def test_probabilities_are_the_models_own():
    x = rows(50, 0)[0]
    model = Fixed(3)
    nn.init.normal_(model.last.weight, generator=torch.Generator().manual_seed(0))
    prediction = OrthonormalCertificates().fit(model, (x, torch.arange(50) % 3), progress=False).predict(x)
    torch.testing.assert_close(prediction.probs, model(x).softmax(1).detach())


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"certificates": 0}, {"penalty": -1.0}):
        with pytest.raises(SettingsError, match="Expected certificates"):
            OrthonormalCertificates(**wrong)
