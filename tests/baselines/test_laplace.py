"""Last-layer Laplace: exact Bayesian linear regression, brute-force curvature, and the evidence by search."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, special
from torch import nn
from torch.nn import functional as F

from splitpoint.baselines import Laplace
from splitpoint.baselines.laplace import LinearEvidence, mutual_information
from splitpoint.errors import SettingsError

WIDTH = 4


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(outputs=1, bias=True, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, outputs, bias=bias))


def design(x, bias=True):
    rows = x.double().numpy()
    return np.hstack([rows, np.ones((len(rows), 1))]) if bias else rows


def regression(outputs=1, count=60):
    x = randn(count, WIDTH)
    return x, x @ randn(WIDTH, outputs, seed=1) + 0.5 * randn(count, outputs, seed=2)


# Regression


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hessian", ["kron", "full"])
def test_regression_is_the_exact_posterior(bias, hessian):
    """Covariance ``(Phi^T Phi / s^2 + delta I)^-1`` of Bayesian linear regression (Bishop 2006, 3.51 and 3.59)."""
    x, y = regression(2)
    method = Laplace(hessian=hessian, prior_precision=0.7, noise=0.4)
    predictor = method.fit(linear(2, bias), (x, y), progress=False)
    points = randn(9, WIDTH, seed=5)
    phi, new = design(x, bias), design(points, bias)
    covariance = np.linalg.inv(phi.T @ phi / 0.16 + 0.7 * np.eye(phi.shape[1]))
    root = predictor.fitted["root"].double()
    np.testing.assert_allclose(root[0] @ root[0].T, covariance, rtol=1e-4, atol=1e-7)
    prediction = predictor.predict(points)
    expected = np.einsum("ij,jk,ik->i", new, covariance, new)
    for k in range(2):
        np.testing.assert_allclose(prediction.epistemic[:, k], expected, rtol=1e-4)
    np.testing.assert_allclose(prediction.aleatoric, 0.16, rtol=1e-5)
    np.testing.assert_allclose(prediction.scale[:, 0], np.sqrt(expected + 0.16), rtol=1e-4)


def ridge(x, y, precision, noise):
    """The model whose weights are the posterior mean."""
    phi = design(x)
    weights = np.linalg.solve(phi.T @ phi + noise * precision * np.eye(phi.shape[1]), phi.T @ y[:, 0].double().numpy())
    model = linear()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(weights[None, :-1]))
        model[0].bias.fill_(weights[-1])
    return model


def test_at_the_posterior_mean_the_evidence_is_that_of_the_data():
    """With MAP weights, the Laplace evidence is ``N(y; 0, s^2 I + Phi Phi^T / delta)``, exactly."""
    x, y = regression(count=30)
    phi, target = design(x), y[:, 0].double().numpy()
    delta, noise = 0.8, 0.3
    model = ridge(x, y, delta, noise)
    residual = target - model(x)[:, 0].detach().double().numpy()
    norm = sum(p.double().square().sum().item() for p in model.parameters())
    values = np.linalg.eigvalsh(phi.T @ phi)
    laplace = cost(values, residual @ residual, 30, norm)(np.log([delta, noise]))
    covariance = noise * np.eye(30) + phi @ phi.T / delta
    sign, log_det = np.linalg.slogdet(covariance)
    assert laplace == pytest.approx(log_det + target @ np.linalg.solve(covariance, target), rel=1e-4)
    assert sign == 1


def cost(values, squares, rows, norm):
    """``-2 log`` evidence at fixed weights, without ``n log 2 pi``, of the logarithms of precision and noise."""

    def function(logs):
        delta, noise = np.exp(logs)
        log_det = np.log(values / noise + delta).sum() - len(values) * logs[0]
        return squares / noise + rows * logs[1] + delta * norm + log_det

    return function


@pytest.mark.parametrize(("squares", "norm"), [(20.0, 3.0), (2.0, 0.1), (100.0, 0.5)])
def test_the_evidence_is_largest_where_a_search_says(squares, norm):
    phi = design(randn(50, WIDTH))
    values = np.linalg.eigvalsh(phi.T @ phi)
    function = cost(values, squares, 50, norm)
    evidence = LinearEvidence(torch.from_numpy(values), squares, 50, norm)
    found = optimize.minimize(function, [0, 0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
    np.testing.assert_allclose(evidence.best(None, None), np.exp(found.x), rtol=1e-4)
    fixed = optimize.minimize_scalar(lambda log: function(np.array([log, math.log(0.25)])), bounds=(-9, 9))
    assert evidence.best(None, 0.5)[0] == pytest.approx(math.exp(fixed.x), rel=1e-3)
    fixed = optimize.minimize_scalar(lambda log: function(np.array([math.log(2), log])), bounds=(-9, 9))
    assert evidence.best(2.0, None)[1] == pytest.approx(math.exp(fixed.x), rel=1e-3)


def test_the_noise_of_a_fitted_line_is_found():
    x, y = regression(count=2000)
    predictor = Laplace().fit(ridge(x, y, 1e-3, 0.25), (x, y), progress=False)
    assert predictor.fitted["noise_variance"].item() == pytest.approx(0.25, rel=0.08)


def test_missing_targets_do_not_count():
    x, y = regression(2)
    y[::3, 1] = torch.nan
    method = Laplace(prior_precision=1.0, noise=1.0)
    predictor = method.fit(linear(2), (x, y), progress=False)
    phi = design(x)[~y[:, 1].isnan().numpy()]
    root = predictor.fitted["root"][1].double()
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(phi.T @ phi + np.eye(WIDTH + 1)), rtol=1e-3, atol=1e-6)


# Classification


def classification(classes=3, count=80):
    x = randn(count, WIDTH)
    return x, torch.arange(count) % classes


def hessian_of_loss(model, x, label):
    """Hessian of the summed log loss in weights and biases, one row of (weights, bias) after another."""
    classes = model[0].out_features
    flat = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach().double().flatten()
    rows = torch.from_numpy(design(x))

    def loss(theta):
        logits = rows @ theta.reshape(classes, WIDTH + 1).T
        if classes == 1:
            return F.binary_cross_entropy_with_logits(logits[:, 0], label.double(), reduction="sum")
        return F.cross_entropy(logits, label, reduction="sum")

    return torch.autograd.functional.hessian(loss, flat).numpy()


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_full_is_the_hessian_of_the_loss(classes):
    x, label = classification(max(classes, 2))
    model = linear(classes)
    method = Laplace(hessian="full", prior_precision=0.5, task="classification", score="variance")
    prediction = method.fit(model, (x, label), progress=False).predict(points := randn(7, WIDTH, seed=4))
    hessian = hessian_of_loss(model, x, label)
    covariance = np.linalg.inv(hessian + 0.5 * np.eye(len(hessian)))
    new, width = design(points), WIDTH + 1
    blocks = [covariance[k * width : (k + 1) * width, k * width : (k + 1) * width] for k in range(classes)]
    variance = np.stack([np.einsum("ij,jk,ik->i", new, block, new) for block in blocks], 1)
    np.testing.assert_allclose(prediction.epistemic, variance.sum(1), rtol=1e-4)
    logits = model(points).detach().double().numpy() / np.sqrt(1 + math.pi / 8 * variance)
    expected = special.softmax(logits, 1) if classes > 1 else special.expit(logits)
    np.testing.assert_allclose(prediction.probs[:, -expected.shape[1] :], expected, rtol=1e-4)
    np.testing.assert_allclose(prediction.base_probs.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("classes", [1, 3])
def test_the_precision_has_the_largest_evidence(classes):
    x, label = classification(max(classes, 2))
    model = linear(classes)
    hessian = np.linalg.eigvalsh(hessian_of_loss(model, x, label)).clip(0)
    norm = sum(p.double().square().sum().item() for p in model.parameters())

    def cost(log_delta):
        delta = math.exp(log_delta)
        return delta * norm + np.log(hessian + delta).sum() - len(hessian) * log_delta

    best = math.exp(optimize.minimize_scalar(cost, bounds=(-9, 9), options={"xatol": 1e-8}).x)
    points = randn(7, WIDTH, seed=4)
    found, given = (
        Laplace(hessian="full", prior_precision=delta, task="classification", score="variance")
        .fit(model, (x, label), progress=False).predict(points).epistemic
        for delta in (None, best)
    )  # fmt: skip
    torch.testing.assert_close(found, given, rtol=1e-3, atol=0)


@pytest.mark.parametrize("classes", [1, 3])
def test_kron_is_full_where_the_curvature_is_the_same_for_all_rows(classes):
    """Without a bias and with weights near 0 all rows have the same probabilities, and the product is exact."""
    x, label = classification(max(classes, 2))
    model = linear(classes, bias=False)
    with torch.no_grad():
        model[0].weight.mul_(1e-6)
    kron, full = (
        Laplace(hessian=hessian, prior_precision=0.5, task="classification", score="variance").fit(
            model, (x, label), progress=False
        )
        for hessian in ("kron", "full")
    )
    points = randn(7, WIDTH, seed=4)
    torch.testing.assert_close(kron.predict(points).epistemic, full.predict(points).epistemic, rtol=1e-4, atol=1e-6)


def test_kron_is_the_product_of_its_factors():
    x, label = classification()
    model = linear(3)
    predictor = Laplace(prior_precision=0.5, score="variance").fit(model, (x, label), progress=False)
    probs = model(x).detach().double().softmax(1).numpy()
    curvature = np.mean([np.diag(p) - np.outer(p, p) for p in probs], 0)
    rows, points = x.double().numpy(), randn(7, WIDTH, seed=4)
    weights = np.linalg.inv(np.kron(curvature, rows.T @ rows) + 0.5 * np.eye(3 * WIDTH))
    biases = np.linalg.inv(len(x) * curvature + 0.5 * np.eye(3))
    new = points.double().numpy()
    expected = sum(
        np.einsum("ij,jk,ik->i", new, weights[k * WIDTH :, k * WIDTH :][:WIDTH, :WIDTH], new) + biases[k, k]
        for k in range(3)
    )
    np.testing.assert_allclose(predictor.predict(points).epistemic, expected, rtol=1e-4)


def test_variance_grows_away_from_the_data():
    x, label = classification()
    predictor = Laplace(score="variance").fit(linear(3), (x, label), progress=False)
    near, far = predictor.predict(x).epistemic, predictor.predict(20 * x).epistemic
    assert far.mean() > 20 * near.mean()


def test_many_classes_need_no_curvature_for_every_row():
    """The rows' own curvatures would be 3000 * 600^2 numbers, 8.6 GB."""
    x = randn(3000, WIDTH)
    predictor = Laplace(prior_precision=1.0).fit(linear(600), (x, torch.arange(3000) % 600), progress=False)
    assert predictor.predict(x[:5]).epistemic.isfinite().all()


def test_the_information_is_that_of_many_draws():
    logits, variance = 2 * randn(5, 3), randn(5, 3, seed=1).square()
    draws = logits + variance.sqrt() * randn(200_000, 5, 3, seed=2)
    probs = draws.double().softmax(2).numpy()
    expected = special.entr(probs.mean(0)).sum(1) - special.entr(probs).sum(2).mean(0)
    np.testing.assert_allclose(mutual_information(logits, variance), expected, atol=0.05)
    np.testing.assert_allclose(mutual_information(logits, 0 * variance), 0, atol=1e-12)


def test_the_information_of_one_logit_is_that_of_a_coin():
    logit, variance = randn(6, 1), randn(6, 1, seed=1).square()
    heads = torch.special.expit(logit[:, 0] + variance[:, 0].sqrt() * randn(200_000, 6, seed=2)).double()
    sides = np.stack([heads.numpy(), 1 - heads.numpy()])
    expected = (special.entr(sides.mean(1)) - special.entr(sides).mean(1)).sum(0)
    pair = torch.cat([torch.zeros_like(logit), logit], 1)
    np.testing.assert_allclose(mutual_information(pair, variance), expected, atol=0.05)


def test_a_sure_answer_has_no_information_however_large_its_variance():
    """Logits of a sure answer may vary much and still leave no doubt, which their variance alone does not tell."""
    sure, unsure = torch.tensor([[60.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert mutual_information(sure, torch.full((1, 3), 9.0)) < 1e-6
    assert mutual_information(unsure, torch.full((1, 3), 1.0)) > 0.05


# What it refuses


def test_what_cannot_be_done_is_refused():
    data = classification()
    with pytest.raises(SettingsError, match="ends in a Linear layer"):
        Laplace().fit(nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 3, 1), nn.Flatten()), data, progress=False)
    with pytest.raises(SettingsError, match="use hessian='kron'"):
        Laplace(hessian="full").fit(linear(2000), data, progress=False)
    for wrong in ({"hessian": "diag"}, {"prior_precision": 0.0}, {"noise": math.nan}, {"score": "entropy"}):
        with pytest.raises(SettingsError, match="Expected"):
            Laplace(**wrong)


# Another library


@pytest.fixture
def rival():
    return pytest.importorskip("laplace", reason="compares with laplace-torch where it is installed")


def network(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, outputs))


AGREEING = [("regression", "full"), ("classification", "full"), ("classification", "kron")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("task", "hessian"), AGREEING)
def test_laplace_torch_agrees(rival, task, hessian):
    x, y = regression() if task == "regression" else classification()
    model, points = network(1 if task == "regression" else 3), randn(7, WIDTH, seed=4)
    settings = {"sigma_noise": 0.4} if task == "regression" else {}
    theirs = rival.Laplace(
        model, task, subset_of_weights="last_layer", hessian_structure=hessian, prior_precision=0.7, **settings
    )
    theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), len(x)))
    mean, covariance = theirs._glm_predictive_distribution(points)
    variance = covariance.diagonal(dim1=1, dim2=2).sum(1).detach()
    noise = 0.4 if task == "regression" else None
    method = Laplace(task=task, hessian=hessian, prior_precision=0.7, noise=noise, score="variance")
    found = method.fit(model, (x, y), progress=False).predict(points)
    np.testing.assert_allclose(found.epistemic.flatten(), variance, rtol=1e-4)
    if task == "classification":
        np.testing.assert_allclose(found.probs, theirs(points, link_approx="probit").detach(), rtol=1e-3)
    else:
        np.testing.assert_allclose(found.mean, mean.detach(), rtol=1e-4)
