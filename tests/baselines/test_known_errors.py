"""Errors that other implementations of these methods make, each with numbers worked out elsewhere."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from problems import LEVELS, differ, drawn, fit, fitted, problem
from splitpoint.baselines import METHODS
from splitpoint.baselines.answers import mixture_answer, mixture_of_normals, normal_answer
from splitpoint.baselines.evidential_regression import NormalInverseGamma, student_quantiles
from splitpoint.baselines.oc import certificate_score, fit_certificates
from splitpoint.cache import Table
from splitpoint.conformal import class_scores


def test_half_widths_are_deviations_and_not_variances():
    """Variances 9 and 16 make a deviation of 5, whose 95% interval is 1.96 times as wide on each side."""
    answer = normal_answer(torch.tensor([[2.0]]), torch.tensor([[9.0]]), torch.tensor([[16.0]]), (0.5, 0.95))
    expected = torch.tensor([[[2 + 5 * 0.6744898, 2 + 5 * 1.9599640]]])
    torch.testing.assert_close(answer.uppers, expected)
    torch.testing.assert_close(answer.lowers, 4 - expected)
    assert answer.scale.item() == 5
    assert answer.total.item() == 25


def test_a_mixture_of_normals_has_the_mean_variance_and_the_variance_of_means():
    means, variances = torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[[2.0]], [[4.0]]])
    answer = mixture_of_normals(means, variances, (0.95,))
    assert (answer.mean.item(), answer.aleatoric.item(), answer.epistemic.item()) == (2.0, 3.0, 1.0)


def test_mutual_information_is_the_entropy_of_the_mean_less_the_mean_entropy():
    answer = mixture_answer(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    torch.testing.assert_close(answer.epistemic, torch.tensor([np.log(2)], dtype=torch.float32))
    sure = mixture_answer(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))
    torch.testing.assert_close(sure.epistemic, torch.zeros(1))


def test_reported_intervals_follow_from_the_reported_scale():
    for name in ("gaussian", "mc_dropout", "deep_ensemble", "laplace"):
        prediction = fitted(name, "pair")(problem("pair").fresh)
        half = (prediction.uppers - prediction.lowers).double() / 2
        for index, level in enumerate(LEVELS):
            expected = stats.norm.ppf((1 + level) / 2) * prediction.total.double().sqrt()
            torch.testing.assert_close(half[..., index], expected, rtol=1e-4, atol=1e-5)


def test_evidential_intervals_are_those_of_a_student_t():
    prediction = fitted("evidential_regression", "pair")(problem("pair").fresh)
    half = (prediction.uppers - prediction.lowers).double() / 2
    for index, level in enumerate(LEVELS):
        quantile = stats.t.ppf((1 + level) / 2, prediction.freedom.double().numpy())
        expected = torch.from_numpy(quantile) * prediction.scale.double()
        torch.testing.assert_close(half[..., index], expected, rtol=1e-4, atol=1e-5)


def test_evidential_scale_by_hand():
    """gamma 0, nu 1, alpha 3, beta 4: squared scale 4 (1 + 1) / (1 * 3), E[sigma^2] = 2, Var[mu] = 2."""
    prior = NormalInverseGamma(*(torch.tensor([[value]]) for value in (0.0, 1.0, 3.0, 4.0)))
    assert (prior.aleatoric.item(), prior.epistemic.item()) == (2.0, 2.0)
    uq = fitted("evidential_regression", "scalar")
    raw = torch.tensor([0.0, np.log(np.expm1(1)), np.log(np.expm1(2)), np.log(np.expm1(4))], dtype=torch.float32)
    answer = uq.method._answer(uq, raw.reshape(1, 1, 4, 1), None)
    spread = uq.fitted["spread"].item()
    assert answer.freedom.item() == pytest.approx(6, rel=1e-5)
    assert answer.scale.item() == pytest.approx(spread * (8 / 3) ** 0.5, rel=1e-5)
    assert answer.aleatoric.item() == pytest.approx(2 * spread**2, rel=1e-5)


@pytest.mark.parametrize("probability", [0.6, 0.75, 0.975, 0.9995])
def test_student_quantiles_are_those_of_scipy(probability):
    freedom = torch.tensor([2.0, 2.1, 3.0, 5.5, 20.0, 1e3, 1e7], dtype=torch.float64)
    expected = torch.from_numpy(stats.t.ppf(probability, freedom.numpy()))
    torch.testing.assert_close(student_quantiles(freedom, probability), expected, rtol=5e-6, atol=0)


class Identity(nn.Module):
    """Passes its input on, through a last layer with weight 1 and bias 0."""

    def __init__(self, outputs=1):
        super().__init__()
        self.last = nn.Linear(outputs, outputs)
        with torch.no_grad():
            self.last.weight.copy_(torch.eye(outputs))
            self.last.bias.zero_()

    def forward(self, x):
        return self.last(x)


def test_conformal_radius_by_hand():
    """Residual sizes 1 to 9: level 0.5 takes the 5th and 0.9 the 9th smallest, ceil(10 level)."""
    data = torch.zeros(9, 1), torch.tensor([3.0, -1, 9, -7, 5, 2, -4, 8, -6])[:, None]
    uq = METHODS["conformal"](confidence_level=(0.5, 0.9)).fit(Identity(), data, calibration=data, progress=False)
    prediction = uq(torch.tensor([[100.0]]))
    assert prediction.uppers.tolist() == [[[105.0, 109.0]]]
    assert prediction.lowers.tolist() == [[[95.0, 91.0]]]


def test_conformal_intervals_cover():
    x, y = drawn(5, 4000, 1), drawn(6, 4000, 1)
    for residual in ("absolute", "normalised"):
        uq = METHODS["conformal"](confidence_level=0.8, residual=residual).fit(
            Identity(), (x[:500], y[:500]), calibration=(x[500:2000], y[500:2000]), progress=False
        )
        prediction = uq(x[2000:])
        covered = (prediction.lower <= y[2000:]) & (y[2000:] <= prediction.upper)
        assert covered.float().mean() == pytest.approx(0.8, abs=0.03)


def test_cumulative_scores_belong_to_their_own_classes():
    """The score of a class is what the more probable ones hold: never that of the class at its rank."""
    probs = torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]])
    expected = torch.tensor([[0.9, 0.0, 0.6], [0.8, 0.5, 0.0]])
    torch.testing.assert_close(class_scores(probs, "aps").float() + 1, expected)


def test_conformal_sets_by_hand():
    """All labels are the second most probable class of (0.6, 0.3, 0.1), so sets hold what has 0.3 or more."""
    logits = torch.tensor([[0.1, 0.6, 0.3]]).log().repeat(40, 1)
    data = logits, torch.full((40,), 2)
    uq = METHODS["conformal"](confidence_level=0.9).fit(Identity(3), data, calibration=data, progress=False)
    fresh = uq(torch.tensor([[0.1, 0.6, 0.3], [0.3, 0.1, 0.6]]).log())
    for score in ("lac", "aps", "raps"):
        assert fresh.sets(0.9, score).tolist() == [[False, True, True], [True, False, True]]
    assert uq(torch.tensor([[0.99, 0.005, 0.005]]).log()).sets(0.9).sum() == 1


def test_dropout_is_on_in_prediction_and_nothing_else_is():
    """Passes differ, though batch normalisation keeps its statistics and no module leaves eval mode."""
    given = problem("scalar")

    def build():
        return nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    uq = fit("mc_dropout", "scalar", model=build)
    state = copy.deepcopy(uq.state_dict())
    prediction = uq(given.fresh)
    assert (prediction.epistemic > 0).all()
    assert all(torch.equal(value, state[key]) for key, value in uq.state_dict().items())
    assert not any(module.training for module in uq.modules())


def test_dropout_rates_of_the_network_are_kept():
    def build():
        return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.35), nn.Linear(16, 1))

    (network,) = fit("mc_dropout", "scalar", model=build, dropout=0.1, epochs=1).networks
    assert [module.p for module in network.modules() if isinstance(module, nn.Dropout)] == [0.35]


@pytest.mark.parametrize("penalty", [0.2, 1.0, 10.0])
def test_certificates_are_orthogonal_with_gains_between_0_and_1(penalty):
    features = drawn(1, 200, 6) @ torch.diag(torch.tensor([3.0, 2, 1, 1, 0.5, 0.1])) @ drawn(2, 6, 6)
    learned = fit_certificates(Table.in_memory({"features": features}), 4, penalty)
    gram = learned["certificates"].T @ learned["certificates"]
    gains = gram.diagonal()
    torch.testing.assert_close(gram, torch.diag(gains), rtol=0, atol=1e-5)
    assert ((gains >= 0) & (gains <= 1 + 1e-6)).all()
    assert gains[0] > 0.9


def test_certificates_are_at_the_minimum_of_their_loss():
    """Gradient descent on ``E |C^T h|^2 + penalty |C^T C - I|^2`` finds nothing lower than the closed form."""
    features = drawn(1, 300, 5) @ drawn(2, 5, 5)
    learned = fit_certificates(Table.in_memory({"features": features}), 3, 0.7)
    rows = (features - learned["center"]) / learned["spread"]

    def loss(certificates):
        gram = certificates.T @ certificates
        return (rows @ certificates).square().sum(1).mean() + 0.7 * (gram - torch.eye(3)).square().sum()

    descended = (0.5 * drawn(3, 5, 3)).requires_grad_()
    optimiser = torch.optim.Adam([descended], 0.02)
    for _ in range(1500):
        optimiser.zero_grad()
        loss(descended).backward()
        optimiser.step()
    assert float(loss(learned["certificates"])) == pytest.approx(loss(descended).item(), rel=1e-3)


def test_the_penalty_of_certificates_matters():
    """With a small one, certificates that move on the training set fade."""
    features = drawn(1, 200, 6)
    sizes = {}
    for penalty in (0.6, 10.0):
        learned = fit_certificates(Table.in_memory({"features": features}), 6, penalty)
        sizes[penalty] = certificate_score(features, **learned).mean()
    assert sizes[0.6] < 0.6 * sizes[10.0]
    strong, weak = (fit("oc", "scalar", penalty=penalty)(problem("scalar").fresh) for penalty in (10.0, 0.1))
    assert differ(replace(strong, reference=None), replace(weak, reference=None))
