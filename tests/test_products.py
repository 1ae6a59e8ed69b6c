"""Products of maps side by side: the same as those of maps that were brought to one resolution first."""

import pytest
import torch
from torch.nn import functional as F

from splitpoint.heads import CACHE_POSITIONS, Heads
from splitpoint.products import MapProduct

WHOLE = (slice(None), slice(None), slice(None))
SHAPES = {
    "one map": [(2, 5, 6, 8)],
    "halves": [(2, 3, 6, 8), (2, 4, 3, 4), (2, 2, 1, 2)],
    "the largest last": [(2, 3, 2, 3), (2, 4, 5, 7)],
    "two of one size": [(2, 3, 4, 4), (2, 1, 4, 4), (2, 2, 2, 2)],
    "sequences": [(2, 3, 9), (2, 4, 5)],
    "volumes": [(2, 3, 2, 2, 2), (2, 2, 3, 4, 4)],
    "several pieces": [(2, 3, 70, 90), (2, 4, 35, 45)],
    "as many as go at once": [(2, 3, 64, CACHE_POSITIONS // 64), (2, 4, 8, 8)],
}
every_shape = pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def maps(shapes):
    return [drawn(number, *shape) + number for number, shape in enumerate(shapes)]


def side_by_side(parts):
    """Maps at the positions of the largest, by PyTorch's own interpolation."""
    shape = max((part.shape[2:] for part in parts), key=torch.Size.numel)
    mode = ("linear", "bilinear", "trilinear")[len(shape) - 1]
    same = [part if part.shape[2:] == shape else F.interpolate(part, shape, mode=mode) for part in parts]
    return torch.cat(same, 1)


@every_shape
def test_products_at_their_own_resolution_are_those_of_maps_side_by_side(shapes):
    parts = maps(shapes)
    width = sum(part.shape[1] for part in parts)
    center, matrix = drawn(9, width), drawn(10, width, 6)
    expected = torch.einsum(
        "nc...,ck->nk...", side_by_side(parts) - center.reshape(-1, *[1] * (len(shapes[0]) - 2)), matrix
    )
    product = MapProduct(parts, center, matrix)
    assert product.shape == tuple(expected.shape[2:])
    torch.testing.assert_close(product.at(WHOLE), expected.flatten(2), rtol=1e-4, atol=1e-4)
    some = slice(1, 2), slice(None), slice(2, 5)
    torch.testing.assert_close(product.at(some), expected.flatten(2)[some], rtol=1e-4, atol=1e-4)


def test_maps_are_left_as_they_were():
    parts = maps(SHAPES["halves"])
    before = [part.clone() for part in parts]
    product = MapProduct(parts, torch.ones(9), drawn(0, 9, 4))
    first = product.at(WHOLE).clone()
    product.at(WHOLE).add_(1)
    assert torch.equal(product.at(WHOLE), first)
    assert all(torch.equal(a, b) for a, b in zip(parts, before, strict=True))


def heads_of(width, leverage):
    inputs = {"center": drawn(0, 1, 1, width), "spread": drawn(1, 1, 1, width).abs() + 0.5}
    if leverage:
        inputs |= {"whiten": drawn(2, 1, width, 7) / 5, "floor": torch.full((1, 1, 1), 0.01)}
        inputs |= {name: torch.full((1, 1, 1), value) for name, value in (("reach", 2.0), ("log_mean", 0.3))}
        inputs["log_spread"] = torch.full((1, 1, 1), 1.5)
    sizes = {"quantile": [8, 2], "mar": [8, 8, 3], "flat": [3]}
    return Heads.random(inputs, sizes, [torch.Generator().manual_seed(3)])


@every_shape
@pytest.mark.parametrize("leverage", [False, True], ids=["plain", "with leverage"])
def test_heads_on_several_maps_answer_as_on_maps_side_by_side(shapes, leverage):
    parts = maps(shapes)
    heads = heads_of(sum(part.shape[1] for part in parts), leverage)
    with torch.no_grad():
        found, expected = heads.pointwise(parts), heads.pointwise(side_by_side(parts))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4, msg=name)


def test_no_maps_give_no_outputs():
    parts = [part[:0] for part in maps(SHAPES["several pieces"])]
    found = heads_of(7, True).pointwise(parts)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "quantile": (0, 2, 70, 90),
        "mar": (0, 3, 70, 90),
        "flat": (0, 3, 70, 90),
        "leverage": (0, 1, 70, 90),
    }
