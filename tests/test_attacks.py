"""The fast gradient sign method: the exact step, the valid range, and a model left as it was."""

import copy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from properties import examples
from splitpoint.attacks import fgsm
from splitpoint.errors import DataError, ShapeError


def linear(weight):
    model = nn.Linear(len(weight), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weight]))
    return model


def test_the_step_is_epsilon_times_the_sign_of_the_gradient():
    model = linear([2.0, -3.0, 0.0])
    x = torch.full((1, 3), 0.5)
    target = torch.tensor([[5.0]])  # output -0.5 lies below, so the loss falls along +weight and rises along -weight
    attacked = fgsm(model, x, target, 0.1, F.mse_loss)
    torch.testing.assert_close(attacked, torch.tensor([[0.4, 0.6, 0.5]]))


def test_the_result_stays_in_the_valid_range():
    model = linear([1.0, -1.0])
    x = torch.tensor([[0.05, 0.95]])
    target = torch.tensor([[9.0]])
    torch.testing.assert_close(fgsm(model, x, target, 0.2, F.mse_loss), torch.tensor([[0.0, 1.0]]))
    wide = fgsm(model, x, target, 0.2, F.mse_loss, valid=(-1.0, 2.0))
    torch.testing.assert_close(wide, torch.tensor([[-0.15, 1.15]]))


def test_epsilon_may_differ_by_channel():
    model = linear([1.0, 1.0])
    x = torch.full((1, 2), 0.5)
    attacked = fgsm(model, x, torch.tensor([[9.0]]), torch.tensor([[0.1, 0.3]]), F.mse_loss)
    torch.testing.assert_close(attacked, torch.tensor([[0.4, 0.2]]))


@examples(20)
@given(st.integers(0, 1000), st.floats(0, 0.3))
def test_no_input_moves_further_than_epsilon_and_the_loss_rises(seed, epsilon):
    generator = torch.Generator().manual_seed(seed)
    model = linear(torch.randn(4, generator=generator).tolist())
    x = torch.rand(6, 4, generator=generator)
    target = 10 * torch.randn(6, 1, generator=generator)
    attacked = fgsm(model, x, target, epsilon, F.mse_loss)
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
    one, other = (fgsm(model, x, label, 0.1, F.cross_entropy) for _ in range(2))
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
        attacked = fgsm(model, x, torch.tensor([[9.0]]), 0.1, F.mse_loss)
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
    torch.testing.assert_close(fgsm(Named(), x, torch.tensor([[9.0]]), 0.1, F.mse_loss), torch.tensor([[0.4, 0.6]]))


# The loss, where none is given


class Fixed(nn.Module):
    """Logits that are the input times a weight, in any shape, wrapped as Hugging Face models wrap theirs."""

    def __init__(self, weight, wrapped=False):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.wrapped = wrapped

    def forward(self, x):
        return SimpleNamespace(logits=x * self.weight) if self.wrapped else x * self.weight


def test_numbers_are_attacked_by_their_squared_error():
    model, x = linear([2.0, -3.0, 0.5]), torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    target = torch.linspace(-3, 3, 5)[:, None]
    assert torch.equal(fgsm(model, x, target, 0.1), fgsm(model, x, target, 0.1, F.mse_loss))
    assert torch.equal(fgsm(model, x, target.flatten(), 0.1), fgsm(model, x, target, 0.1, F.mse_loss))


@pytest.mark.parametrize("wrapped", [False, True])
def test_classes_are_attacked_by_their_log_loss(wrapped):
    x = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    label = torch.arange(6) % 3
    expected = fgsm(Fixed([1.0, -2.0, 3.0]), x, label, 0.1, F.cross_entropy)
    assert torch.equal(fgsm(Fixed([1.0, -2.0, 3.0], wrapped), x, label, 0.1), expected)
    assert torch.equal(fgsm(Fixed([1.0, -2.0, 3.0], wrapped), x, label[:, None], 0.1), expected)


def test_missing_targets_are_not_attacked():
    x = torch.full((3, 2), 0.5)
    numbers = fgsm(linear([1.0, -1.0]), x, torch.tensor([[9.0], [float("nan")], [-9.0]]), 0.1)
    torch.testing.assert_close(numbers, torch.tensor([[0.4, 0.6], [0.5, 0.5], [0.6, 0.4]]))
    classes = fgsm(Fixed([1.0, 1.0]), x, torch.tensor([0, -100, 1]), 0.1)
    torch.testing.assert_close(classes, torch.tensor([[0.4, 0.6], [0.5, 0.5], [0.6, 0.4]]))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_logit_stands_for_two_classes(shape):
    x, label = torch.full(shape, 0.5), torch.tensor([0, 1, 1, 0])
    expected = torch.tensor([0.6, 0.4, 0.4, 0.6]).reshape(shape)
    torch.testing.assert_close(fgsm(Fixed([1.0]), x, label, 0.1), expected)


@pytest.mark.parametrize("axis", [1, -1])
def test_maps_and_sequences_of_logits(axis):
    x = torch.full((2, 5, 3), 0.5)  # last axis classes, or (N, K, T) after moving it
    label = torch.arange(10).reshape(2, 5) % 3
    expected = 0.5 + 0.1 * (1 - 2 * F.one_hot(label, 3))
    attacked = fgsm(Fixed([1.0]), x.movedim(-1, axis), label, 0.1)
    torch.testing.assert_close(attacked, expected.movedim(-1, axis))


def test_a_large_batch_moves_as_its_rows_do():
    x = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
    label = torch.zeros(500).long()
    together = fgsm(Fixed([1.0, 2.0]), x, label, 0.1)
    assert torch.equal(together[:1], fgsm(Fixed([1.0, 2.0]), x[:1], label[:1], 0.1))


# The valid range


def test_none_does_not_clamp():
    attacked = fgsm(linear([1.0, -1.0]), torch.tensor([[0.0, 1.0]]), torch.tensor([[9.0]]), 0.2, valid=None)
    torch.testing.assert_close(attacked, torch.tensor([[-0.2, 1.2]]))


def test_normalised_inputs_have_a_range_for_each_channel():
    mean, deviation = torch.tensor([0.5, 0.2]).reshape(2, 1, 1), torch.tensor([0.5, 0.1]).reshape(2, 1, 1)
    model = Fixed([1.0])
    pixels = torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    x = (pixels - mean) / deviation
    attacked = fgsm(
        model, x, torch.full_like(x, -99), 0.3 / deviation, valid=(-mean / deviation, (1 - mean) / deviation)
    )
    torch.testing.assert_close(attacked * deviation + mean, (pixels + 0.3).clamp(0, 1))


def test_a_number_and_a_tensor_may_be_mixed():
    attacked = fgsm(
        linear([1.0, 1.0]), torch.tensor([[0.5, 0.5]]), torch.tensor([[-9.0]]), 0.4, valid=(0, torch.tensor([0.6, 0.8]))
    )
    torch.testing.assert_close(attacked, torch.tensor([[0.6, 0.8]]))


def test_it_works_in_inference_mode_and_keeps_old_gradients():
    model = linear([1.0, -1.0])
    model(torch.ones(1, 2)).sum().backward()
    before = model.weight.grad.clone()
    with torch.inference_mode():
        x, target = torch.full((1, 2), 0.5), torch.tensor([[9.0]])
        attacked = fgsm(model, x, target, 0.1)
        torch.testing.assert_close(attacked, torch.tensor([[0.4, 0.6]]))
    assert torch.equal(model.weight.grad, before)


# What is refused


def test_inputs_that_cannot_move_are_refused():
    with pytest.raises(DataError, match=r"Expected floating-point inputs to move, but got torch.int64; attack the emb"):
        fgsm(linear([1.0]), torch.zeros(1, 1).long(), torch.zeros(1, 1), 0.1)


def test_labels_of_another_shape_are_refused():
    with pytest.raises(ShapeError, match=r"class axis of the output \(2, 3\), but got \(5,\)"):
        fgsm(Fixed([1.0]), torch.rand(2, 3), torch.zeros(5).long(), 0.1)


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(DataError, match="Expected labels from 0 to 2, but got 3"):
        fgsm(Fixed([1.0]), torch.rand(2, 3), torch.tensor([0, 3]), 0.1)
