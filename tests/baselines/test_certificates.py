"""Certificates: the closed form is what gradient descent on the stated loss finds."""

import pytest
import torch

from splitpoint.baselines.oc import certificate_score, fit_certificates
from splitpoint.cache import Table

ROWS, WIDTH = 400, 5


def features(scale=(2.0, 1.0, 0.5, 0.1, 0.05)):
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator)).Q
    return torch.randn(ROWS, WIDTH, generator=generator) * torch.tensor(scale) @ axes.T + 3


def standard(rows):
    return (rows - rows.mean(0)) / rows.std(0, correction=0)


def loss(certificates, rows, penalty):
    gram = certificates.T @ certificates
    return (rows @ certificates).square().sum(1).mean() + penalty * (
        gram - torch.eye(len(gram)).to(gram)
    ).square().sum()


def descended(rows, count, penalty, seed):
    """Certificates that gradients find from a random start."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(WIDTH, count, dtype=torch.float64, generator=generator).requires_grad_()
    optimiser = torch.optim.LBFGS([found], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        value = loss(found, rows, penalty)
        value.backward()
        return value

    optimiser.step(closure)
    return found.detach()


@pytest.mark.parametrize(("count", "penalty"), [(2, 1.0), (4, 1.0), (5, 0.4), (3, 10.0)])
def test_the_closed_form_is_the_minimum(count, penalty):
    rows = features()
    found = fit_certificates(Table.in_memory({"features": rows}), count, penalty)["certificates"].double()
    assert found.shape == (WIDTH, count)
    inputs = standard(rows).double()
    trained = min(
        (descended(inputs, count, penalty, seed) for seed in range(3)), key=lambda c: loss(c, inputs, penalty)
    )
    assert loss(found, inputs, penalty).item() == pytest.approx(loss(trained, inputs, penalty).item(), abs=1e-5)
    torch.testing.assert_close(found @ found.T, trained @ trained.T, atol=2e-2, rtol=0)  # the same score everywhere


def test_certificates_are_orthogonal_and_orthonormal_where_nothing_moves():
    gram = fit_certificates(Table.in_memory({"features": features()}), 4, 1.0)["certificates"]
    gram = gram.T @ gram
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-5, rtol=0)
    assert (gram.diagonal() <= 1 + 1e-5).all()


def test_training_rows_do_not_answer_in_directions_in_which_they_do_not_move():
    rows = features((2.0, 1.0, 0.5, 0.0, 0.0))
    fitted = fit_certificates(Table.in_memory({"features": rows}), 2, 1.0)
    torch.testing.assert_close(fitted["certificates"].T @ fitted["certificates"], torch.eye(2), atol=1e-4, rtol=0)
    assert certificate_score(rows, **fitted).max() < 1e-8
    assert certificate_score(rows + torch.randn(WIDTH), **fitted).min() > 1e-3


def test_there_are_no_more_certificates_than_features():
    fitted = fit_certificates(Table.in_memory({"features": features()}), 100, 1.0)
    assert fitted["certificates"].shape == (WIDTH, WIDTH)


def test_constant_features_are_certificates_themselves():
    rows = features()
    rows[:, 2] = 7
    fitted = fit_certificates(Table.in_memory({"features": rows}), 1, 1.0)
    assert fitted["certificates"].abs().argmax() == 2
    moved = rows[:1].clone()
    moved[0, 2] += 3
    assert certificate_score(moved, **fitted).item() == pytest.approx(9, rel=1e-4)
