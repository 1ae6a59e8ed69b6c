"""The fast gradient sign method: the exact step, the valid range, and a model left as it was."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from splitpoint.attacks import fgsm


def linear(weight):
    model = nn.Linear(len(weight), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weight]))
    return model


def test_the_step_is_epsilon_times_the_sign_of_the_gradient():
    model = linear([2.0, -3.0, 0.0])
    x = torch.full((1, 3), 0.5)
    target = torch.tensor([[5.0]])  # output -0.5 lies below, so the loss falls along +weight and rises along -weight
    attacked = fgsm(model, x, target, F.mse_loss, 0.1)
    torch.testing.assert_close(attacked, torch.tensor([[0.4, 0.6, 0.5]]))


def test_the_result_stays_in_the_valid_range():
    model = linear([1.0, -1.0])
    x = torch.tensor([[0.05, 0.95]])
    target = torch.tensor([[9.0]])
    torch.testing.assert_close(fgsm(model, x, target, F.mse_loss, 0.2), torch.tensor([[0.0, 1.0]]))
    wide = fgsm(model, x, target, F.mse_loss, 0.2, valid=(-1.0, 2.0))
    torch.testing.assert_close(wide, torch.tensor([[-0.15, 1.15]]))


def test_epsilon_may_differ_by_channel():
    model = linear([1.0, 1.0])
    x = torch.full((1, 2), 0.5)
    attacked = fgsm(model, x, torch.tensor([[9.0]]), F.mse_loss, torch.tensor([[0.1, 0.3]]))
    torch.testing.assert_close(attacked, torch.tensor([[0.4, 0.2]]))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 0.3))
def test_no_input_moves_further_than_epsilon_and_the_loss_rises(seed, epsilon):
    generator = torch.Generator().manual_seed(seed)
    model = linear(torch.randn(4, generator=generator).tolist())
    x = torch.rand(6, 4, generator=generator)
    target = 10 * torch.randn(6, 1, generator=generator)
    attacked = fgsm(model, x, target, F.mse_loss, epsilon)
    assert ((attacked - x).abs() <= epsilon + 1e-6).all()
    with torch.no_grad():
        size, before = (model(attacked) - target).abs(), (model(x) - target).abs()
    kept = before > 4 * epsilon * model.weight.abs().sum()  # far enough that the step cannot cross the target
    assert (size[kept] >= before[kept] - 1e-5).all()


@pytest.mark.parametrize("mode", [True, False])
def test_the_model_runs_in_eval_mode_and_is_left_as_it_was(mode):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).train(mode)
    state = copy.deepcopy(model.state_dict())
    x = torch.rand(16, 4, generator=torch.Generator().manual_seed(0))
    label = torch.arange(16) % 3
    one, other = (fgsm(model, x, label, F.cross_entropy, 0.1) for _ in range(2))
    assert torch.equal(one, other)
    assert model.training == mode
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not one.requires_grad


def test_it_works_under_no_grad_and_leaves_the_input_alone():
    model = linear([1.0, -1.0])
    x = torch.tensor([[0.5, 0.5]])
    before = x.clone()
    with torch.no_grad():
        attacked = fgsm(model, x, torch.tensor([[9.0]]), F.mse_loss, 0.1)
    assert torch.equal(x, before)
    assert not torch.equal(attacked, x)


def test_models_that_return_a_dict():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear([1.0, -1.0])

        def forward(self, x):
            return {"logits": self.inner(x)}

    x = torch.tensor([[0.5, 0.5]])
    torch.testing.assert_close(fgsm(Named(), x, torch.tensor([[9.0]]), F.mse_loss, 0.1), torch.tensor([[0.4, 0.6]]))
