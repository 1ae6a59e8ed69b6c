"""Temperature scaling of a trained classifier, and what it refuses."""

import pytest
import torch
from torch import nn

from splitpoint.baselines import TemperatureScaling
from splitpoint.errors import SettingsError


def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(count, 1, generator=generator)
    return x, torch.bernoulli(torch.sigmoid(x[:, 0]), generator=generator).long()


def model(outputs):
    """Overconfident by a factor of four, with one logit or two."""
    layer = nn.Linear(1, outputs, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[4.0]]) if outputs == 1 else torch.tensor([[-2.0], [2.0]]))
    return nn.Sequential(layer)


@pytest.mark.parametrize("outputs", [1, 2])
def test_probabilities_become_the_true_ones(outputs):
    method = TemperatureScaling()
    predictor = method.fit(model(outputs), data(100, 0), calibration=data(40_000, 1), progress=False)
    assert predictor.fitted["temperature"].item() == pytest.approx(4, rel=0.05)
    x = torch.linspace(-3, 3, 13)[:, None]
    prediction = predictor.predict(x)
    torch.testing.assert_close(prediction.probs[:, 1], torch.sigmoid(x[:, 0]), atol=0.01, rtol=0)
    torch.testing.assert_close(prediction.base_probs[:, 1], torch.sigmoid(4 * x[:, 0]))


def test_it_needs_a_criterion_and_calibration_data():
    with pytest.raises(SettingsError, match="use softmax for none"):
        TemperatureScaling(temperature=None)
    with pytest.raises(SettingsError, match="calibration data"):
        TemperatureScaling().fit(model(2), data(20, 0), progress=False)
    with pytest.raises(SettingsError, match="Expected temperature"):
        TemperatureScaling(temperature="brier")
