"""The product of stacked layers against PyTorch's own, in value and in every gradient."""

import pytest
import torch

from splitpoint.heads import NARROW, stacked_linear

WIDTHS = [(8, 50), (50, 50), (50, 1), (50, 2), (50, 5), (50, NARROW - 1), (50, NARROW), (2, 1), (1, 1), (1, 3)]


def parts(inputs, outputs, members=3, rows=7):
    generator = torch.Generator().manual_seed(inputs * 100 + outputs)
    shapes = (members, rows, inputs), (members, inputs, outputs), (members, 1, outputs)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
def test_values_and_gradients_are_those_of_the_plain_product(inputs, outputs):
    ours, theirs = parts(inputs, outputs), parts(inputs, outputs)
    found, expected = stacked_linear(*ours), torch.baddbmm(theirs[2], theirs[0], theirs[1])
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(found, expected)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.parametrize("outputs", [1, 3])
def test_gradients_agree_with_differences(outputs):
    assert torch.autograd.gradcheck(stacked_linear, parts(6, outputs))


def test_inputs_without_gradient_get_none():
    x, weight, bias = parts(20, 2)
    stacked_linear(x.detach(), weight, bias).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


def test_the_product_works_under_autocast_and_inside_function_transforms():
    x, weight, bias = (part.detach().float() for part in parts(20, 2))
    weight.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = stacked_linear(x, weight, bias)
    found.float().sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(1)[..., None].expand_as(weight))
    slopes = torch.func.vmap(torch.func.grad(lambda w, a, b: stacked_linear(a[None], w[None], b[None]).sum()))
    torch.testing.assert_close(slopes(weight.detach(), x, bias), weight.grad)
