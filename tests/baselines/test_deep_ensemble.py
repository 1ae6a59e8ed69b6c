"""Deep ensembles: moments of the members by hand, and doubt that grows where there are no data."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from splitpoint.baselines import DeepEnsemble, Gaussian
from splitpoint.batches import Batch
from splitpoint.errors import SettingsError
from splitpoint.networks import build
from splitpoint.networks.stack import ListedStack


def regression():
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(300, 1, generator=generator) - 1
    return x, 20 + 5 * torch.sin(3 * x) + 0.3 * torch.randn(300, 1, generator=generator)


def network(outputs=1, inputs=1):
    return lambda: nn.Sequential(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, outputs))


@pytest.fixture(scope="module")
def fitted():
    return DeepEnsemble(members=4, epochs=60, learning_rate=5e-3).fit(network(), regression(), progress=False)


def test_moments_are_those_of_the_mixture_of_its_members(fitted):
    _x, y = regression()
    points = torch.linspace(-3, 3, 11)[:, None]
    center, spread = y.mean().item(), y.std(correction=0).item()
    raw = torch.stack([member(points) for member in fitted.networks]).numpy()
    means = center + spread * raw[:, :, :1]
    variances = spread**2 * (F.softplus(torch.from_numpy(raw[:, :, 1:])).numpy() + 1e-6)
    prediction = fitted.predict(points)
    np.testing.assert_allclose(prediction.mean, means.mean(0), rtol=1e-4)
    np.testing.assert_allclose(prediction.aleatoric, variances.mean(0), rtol=1e-4)
    np.testing.assert_allclose(prediction.epistemic, means.var(0), rtol=1e-3)
    second = (variances + means**2).mean(0) - means.mean(0) ** 2
    np.testing.assert_allclose(prediction.total, second, rtol=1e-3)
    half = stats.norm.ppf(0.975) * prediction.total.sqrt().numpy()
    np.testing.assert_allclose(prediction.upper - prediction.mean, half, rtol=1e-3)


def test_members_disagree_outside_the_data_and_agree_within(fitted):
    inside, outside = (
        fitted.predict(torch.linspace(-0.9, 0.9, 50)[:, None]),
        fitted.predict(torch.tensor([[-4.0], [4.0]])),
    )
    assert (inside.mean - 20 - 5 * torch.sin(3 * torch.linspace(-0.9, 0.9, 50)[:, None])).abs().mean() < 0.5
    assert outside.epistemic.min() > 20 * inside.epistemic.mean()


def test_mutual_information_of_classifiers_by_hand():
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(120) % 3
    x = torch.tensor([[2.0, 0.0], [-2.0, 2.0], [0.0, -3.0]])[label] + 0.5 * torch.randn(120, 2, generator=generator)
    predictor = DeepEnsemble(members=3, epochs=30, learning_rate=0.01).fit(network(3, 2), (x, label), progress=False)
    points = 6 * torch.randn(40, 2, generator=generator)
    probs = torch.stack([member(points).softmax(1) for member in predictor.networks]).double().numpy()
    prediction = predictor.predict(points)
    whole, within = stats.entropy(probs.mean(0), axis=1), stats.entropy(probs, axis=2).mean(0)
    np.testing.assert_allclose(prediction.probs, probs.mean(0), atol=1e-5)
    np.testing.assert_allclose(prediction.total, whole, atol=1e-5)
    np.testing.assert_allclose(prediction.epistemic, whole - within, atol=1e-5)
    assert (predictor.predict(x).label == label).double().mean() > 0.97


def test_sequences_have_a_prediction_at_every_step():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 5, 2, generator=generator)
    predictor = DeepEnsemble(members=2, epochs=2).fit(network(1, 2), (x, x.sum(2, keepdim=True)), progress=False)
    assert predictor.predict(x).mean.shape == (60, 5, 1)


def test_an_ensemble_needs_a_member():
    with pytest.raises(SettingsError, match="members >= 1"):
        DeepEnsemble(members=0)


def three_classes():
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(120) % 3
    return torch.tensor([[2.0, 0.0], [-2.0, 2.0], [0.0, -3.0]])[label] + torch.randn(120, 2, generator=generator), label


def test_an_ensemble_of_networks_trained_elsewhere_answers_as_one_that_fit_trained():
    data, method = three_classes(), DeepEnsemble(members=3, epochs=30, learning_rate=0.01, temperature="nll")
    trained = method.fit(network(3, 2), data, calibration=data, progress=False)
    assembled = method.assemble(trained.networks, data, calibration=data, progress=False)
    for name in ("probs", "epistemic", "total"):
        torch.testing.assert_close(
            getattr(assembled.predict(data[0]), name), getattr(trained.predict(data[0]), name), rtol=0, atol=0
        )
    assert assembled.networks[0] is not trained.networks[0]


def test_networks_for_numbers_are_assembled_with_their_pattern(fitted):
    x, y = regression()
    assembled = fitted.method.assemble(fitted.networks, (x, y), pattern=network(), progress=False)
    for name in ("mean", "lowers", "uppers", "epistemic"):
        torch.testing.assert_close(
            getattr(assembled.predict(x), name), getattr(fitted.predict(x), name), rtol=0, atol=0
        )


def test_what_is_prepared_learns_as_fit_does_in_standard_units():
    """A loop of one's own over the prepared loss: the network ends as good as the mean and deviation of the noise."""
    x, y = regression()
    method = Gaussian()
    prepared = method.prepared(network(), (x, y))
    stack = ListedStack([build(prepared.factory, 0)])
    target = prepared.read(y[None, None])[0]
    assert float(target.mean()) == pytest.approx(0, abs=1e-5)
    assert float(target.std(correction=0)) == pytest.approx(1, abs=1e-5)
    optimiser = torch.optim.Adam(stack.parameters(), 5e-3)
    for _ in range(400):
        optimiser.zero_grad()
        prepared.loss(stack, Batch((x[None],), {}, target), 0.0).sum().backward()
        optimiser.step()
    prediction = method.assemble(stack.networks(), (x, y), pattern=network(), progress=False).predict(x)
    assert (prediction.mean - 20 - 5 * torch.sin(3 * x)).abs().mean() < 0.1
    assert 0.2 < prediction.aleatoric.sqrt().mean() < 0.4


def test_too_few_networks_and_numbers_without_a_pattern_cannot_be_assembled():
    data = three_classes()
    with pytest.raises(SettingsError, match="Expected 5 networks to assemble, but got 2"):
        DeepEnsemble().assemble([network(3, 2)(), network(3, 2)()], data)
    with pytest.raises(SettingsError, match="Expected a pattern= of networks for numbers"):
        DeepEnsemble(members=1).assemble([network()()], regression())
