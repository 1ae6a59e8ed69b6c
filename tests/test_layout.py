"""Shapes: how vectors, maps and sequences become rows and come back."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from splitpoint.errors import ShapeError
from splitpoint.layout import Layout, bands

N, C, D, H, W, T = 2, 5, 3, 4, 6, 7
REGRESSION, CLASSIFICATION = 2, 3  # least number of output axes with which a channel axis may be missing


def numbered(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)


CASES = {
    # name: (feature shapes, channels last, output shape, squeezable, dense, axis, canonical output shape)
    "vector": ([(N, C)], [True], (N, D), REGRESSION, False, 1, (N, D)),
    "vector, flat output": ([(N, C)], [True], (N,), REGRESSION, False, 1, (N, 1)),
    "vector, classes": ([(N, C)], [True], (N, D), CLASSIFICATION, False, 1, (N, D)),
    "vector, shaped output": ([(N, C)], [True], (N, D, W), REGRESSION, False, 1, (N, D * W)),
    "pooled map": ([(N, C, H, W)], [False], (N, D), CLASSIFICATION, False, 1, (N, D)),
    "pooled sequence": ([(N, T, C)], [True], (N, D), CLASSIFICATION, False, 1, (N, D)),
    "map": ([(N, C, H, W)], [False], (N, D, H, W), CLASSIFICATION, True, 1, (N, D, H * W)),
    "map of one channel": ([(N, C, H, W)], [False], (N, 1, H, W), REGRESSION, True, 1, (N, 1, H * W)),
    "map at another resolution": (
        [(N, C, 2, 3)],
        [False],
        (N, D, H, W),
        CLASSIFICATION,
        True,
        1,
        (N, D, H * W),
    ),
    "squeezed map": ([(N, C, H, W)], [False], (N, H, W), REGRESSION, True, None, (N, 1, H * W)),
    "signal": ([(N, C, T)], [False], (N, D, T), CLASSIFICATION, True, 1, (N, D, T)),
    "volume": ([(N, C, H, W, T)], [False], (N, D, H, W, T), CLASSIFICATION, True, 1, (N, D, H * W * T)),
    "sequence": ([(N, T, C)], [True], (N, T, D), CLASSIFICATION, True, -1, (N, D, T)),
    "squeezed sequence": ([(N, T, C)], [True], (N, T), REGRESSION, True, None, (N, 1, T)),
    "map with channels last": ([(N, H, W, C)], [True], (N, H, W, D), CLASSIFICATION, True, -1, (N, D, H * W)),
    "vector and map": ([(N, C), (N, 2, H, W)], [True, False], (N, D), REGRESSION, False, 1, (N, D)),
    "two maps": (
        [(N, C, H, W), (N, 2, 2, 3)],
        [False, False],
        (N, D, H, W),
        CLASSIFICATION,
        True,
        1,
        (N, D, H * W),
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def laid_out(case):
    features, last, output, squeezable, *_ = case
    tensors, result = [numbered(*shape) for shape in features], numbered(*output)
    return Layout.infer(tensors, last, result, squeezable), tensors, result


# Reading the layout


@every_case
def test_the_layout_is_read_off_the_shapes(case):
    layout, _, _ = laid_out(case)
    *_, last, _, _, dense, axis, _ = case
    assert (layout.last, layout.dense, layout.axis) == (tuple(last), dense, axis)


def test_an_output_that_may_not_be_squeezed_is_pooled_instead():
    layout = Layout.infer([numbered(N, T, C)], [True], numbered(N, T), CLASSIFICATION)
    assert not layout.dense


def test_a_layout_cannot_be_changed():
    layout = laid_out(CASES["map"])[0]
    with pytest.raises(AttributeError):
        layout.dense = False


# There and back


@every_case
def test_outputs_have_the_canonical_shape(case):
    layout, _, output = laid_out(case)
    assert layout.output(output).shape == case[-1]


@every_case
def test_restoring_the_canonical_output_gives_the_output_back(case):
    layout, _, output = laid_out(case)
    assert torch.equal(layout.restore(layout.output(output), output), output)


def test_canonical_outputs_keep_rows_channels_and_positions_apart():
    output = numbered(N, T, D)
    layout = Layout.infer([numbered(N, T, C)], [True], output, CLASSIFICATION)
    canonical = layout.output(output)
    for row in range(N):
        for position in range(T):
            for channel in range(D):
                assert canonical[row, channel, position] == output[row, position, channel]


@pytest.mark.parametrize("name", ["vector", "pooled map", "map", "map at another resolution", "sequence", "two maps"])
def test_restored_classes_stand_where_the_model_has_its_channels(name):
    layout, _, output = laid_out(CASES[name])
    assert torch.equal(layout.restore_classes(layout.output(output), output), output)


def test_classes_of_a_squeezed_output_get_an_axis_of_their_own():
    layout, _, output = laid_out(CASES["squeezed map"])
    classes = numbered(N, 2, H * W)
    assert torch.equal(layout.restore_classes(classes, output), classes.reshape(N, 2, H, W))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("vector", (N,)),
        ("pooled map", (N,)),
        ("map", (N, H, W)),
        ("map at another resolution", (N, H, W)),
        ("sequence", (N, T)),
        ("squeezed map", (N, H, W)),
        ("map with channels last", (N, H, W)),
        ("volume", (N, H, W, T)),
    ],
)
def test_scores_come_back_in_the_shape_of_the_output_without_its_channels(name, shape):
    layout, _, output = laid_out(CASES[name])
    values = numbered(*shape) if len(shape) == 1 else numbered(*shape).flatten(1)
    assert torch.equal(layout.restore_scores(values, output), numbered(*shape))


@every_case
def test_a_smaller_last_batch_fits_the_layout_of_the_first(case):
    layout, _, output = laid_out(case)
    single = output[:1]
    assert torch.equal(layout.restore(layout.output(single), single), single)


@pytest.mark.parametrize("name", ["vector", "vector, flat output", "map", "sequence", "squeezed map"])
def test_a_batch_without_rows_keeps_its_channels(name):
    case = CASES[name]
    layout, _, output = laid_out(case)
    nothing = output[:0]
    canonical = layout.output(nothing)
    assert canonical.shape == (0, *case[-1][1:])
    assert layout.restore(canonical, nothing).shape == nothing.shape


# Features


def test_vectors_stay_as_they_are():
    layout, (features,), _ = laid_out(CASES["vector"])
    assert torch.equal(layout.features([features]), features)


def test_positions_are_averaged_away_for_an_output_without_positions():
    layout, (features,), _ = laid_out(CASES["pooled map"])
    expected = F.adaptive_avg_pool2d(features, 1).flatten(1)
    torch.testing.assert_close(layout.features([features]), expected)
    layout, (features,), _ = laid_out(CASES["pooled sequence"])
    torch.testing.assert_close(layout.features([features]), features.mean(1))


def test_vectors_and_pooled_maps_are_joined():
    layout, (vector, maps), _ = laid_out(CASES["vector and map"])
    got = layout.features([vector, maps])
    torch.testing.assert_close(got, torch.cat([vector, maps.mean((2, 3))], 1))


def test_dense_features_keep_their_positions_with_channels_second():
    layout, (features,), _ = laid_out(CASES["map"])
    assert torch.equal(layout.features([features]).flatten(2), features.flatten(2))
    layout, (features,), _ = laid_out(CASES["sequence"])
    assert torch.equal(layout.features([features]), features.transpose(1, 2))
    layout, (features,), _ = laid_out(CASES["map with channels last"])
    assert torch.equal(layout.features([features]).flatten(2), features.permute(0, 3, 1, 2).flatten(2))


def test_dense_features_of_several_resolutions_meet_at_the_largest():
    layout, (large, small), _ = laid_out(CASES["two maps"])
    got = layout.features([large, small]).reshape(N, C + 2, H, W)
    assert torch.equal(got[:, :C], large)
    torch.testing.assert_close(got[:, C:], nn.Upsample(size=(H, W), mode="bilinear")(small))


def test_the_largest_resolution_need_not_come_first():
    small, large = torch.ones(N, 2, 2), numbered(N, 1, 4)
    layout = Layout.infer([small, large], [False, False], numbered(N, D, 4), CLASSIFICATION)
    assert torch.equal(layout.features([small, large]), torch.cat([torch.ones(N, 2, 4), large], 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_features_are_float32_whatever_the_model_computes_in(dtype):
    features = numbered(N, C, H, W, dtype=dtype)
    for output in (numbered(N, D), numbered(N, D, H, W)):
        layout = Layout.infer([features], [False], output, CLASSIFICATION)
        assert layout.features([features]).dtype == torch.float32


# Heads and nearest neighbours


def test_head_outputs_at_the_resolution_of_the_output_are_only_flattened():
    layout, _, output = laid_out(CASES["map"])
    values = numbered(N, 2, H, W)
    assert torch.equal(layout.heads(values, output), values.flatten(2))


def test_head_outputs_without_positions_pass_through():
    layout, _, output = laid_out(CASES["vector"])
    values = numbered(N, 9)
    assert torch.equal(layout.heads(values, output), values)


def test_head_outputs_are_resized_linearly_to_the_output():
    output = torch.zeros(1, 1, 4)
    layout = Layout.infer([torch.zeros(1, C, 2)], [False], output, REGRESSION)
    got = layout.heads(torch.tensor([[[0.0, 1.0]]]), output)
    assert got.tolist() == [[[0.0, 0.25, 0.75, 1.0]]]  # pixel centres at 1/4 and 3/4


def test_head_outputs_of_maps_are_resized_bilinearly_to_the_output():
    layout, _, output = laid_out(CASES["map at another resolution"])
    values = numbered(N, 2, 2, 3)
    expected = nn.Upsample(size=(H, W), mode="bilinear")(values).flatten(2)
    torch.testing.assert_close(layout.heads(values, output), expected)


def test_resizing_keeps_a_constant_constant():
    for shape, positions in (((N, C, 2), (T,)), ((N, C, 2, 3), (H, W)), ((N, C, 2, 2, 2), (3, 4, 5))):
        output = torch.zeros(N, D, *positions)
        layout = Layout.infer([torch.zeros(shape)], [False], output, CLASSIFICATION)
        got = layout.heads(torch.full((N, 2, *shape[2:]), 1.5), output)
        assert torch.equal(got, torch.full((N, 2, torch.Size(positions).numel()), 1.5))


def test_more_than_three_axes_of_positions_cannot_be_resized():
    output = torch.zeros(1, 1, 2, 2, 2, 2)
    layout = Layout.infer([torch.zeros(1, C, 1, 1, 1, 1)], [False], output, CLASSIFICATION)
    with pytest.raises(ShapeError, match="one to three positions axes to resize, but got 4"):
        layout.heads(torch.zeros(1, 1, 1, 1, 1, 1), output)


# Features at some positions only


def at_all(layout, features, output):
    """Features of every position of the output, through those of some positions."""
    count = layout.output(output).shape[2]
    return layout.at(features, output, torch.arange(count).expand(len(output), -1))


def test_features_are_repeated_at_every_output_position():
    output = torch.zeros(1, 1, 4)
    layout = Layout.infer([torch.zeros(1, 1, 2)], [False], output, REGRESSION)
    assert at_all(layout, [torch.tensor([[[5.0, 9.0]]])], output).tolist() == [[[5, 5, 9, 9]]]


def test_features_at_the_resolution_of_the_output_are_left_alone():
    layout, features, output = laid_out(CASES["map"])
    assert torch.equal(at_all(layout, features, output), features[0].flatten(2))


def test_the_nearest_features_are_those_of_torch_in_two_dimensions():
    layout, features, output = laid_out(CASES["map at another resolution"])
    expected = F.interpolate(features[0], (H, W), mode="nearest-exact").flatten(2)
    assert torch.equal(at_all(layout, features, output), expected)


def test_one_of_several_features_is_taken_when_the_output_is_smaller():
    output = torch.zeros(1, 1, 2)
    layout = Layout.infer([torch.zeros(1, 1, 6)], [False], output, REGRESSION)
    assert at_all(layout, [numbered(1, 1, 6)], output).tolist() == [[[1, 4]]]  # the middle of each third


def test_every_row_has_positions_of_its_own():
    layout, features, output = laid_out(CASES["map"])
    found = layout.at(features, output, torch.tensor([[3, 0], [W + 1, 3]]))
    assert torch.equal(found[0], features[0][0, :, 0, [3, 0]])
    assert torch.equal(found[1], torch.stack([features[0][1, :, 1, 1], features[0][1, :, 0, 3]], 1))


@pytest.mark.parametrize(
    ("shapes", "last"),
    [
        ([(N, C, H, W), (N, 2, 2, 3)], [False, False]),
        ([(N, C, 3, 5), (N, 2, 8, 10), (N, 4, 1, 2)], [False] * 3),
        ([(N, 3, 5, C), (N, 2, 8, 10)], [True, False]),
        ([(N, C, 7), (N, 4, 11)], [False, False]),
        ([(N, C, 2, 3, 4), (N, 2, 4, 3, 5)], [False, False]),
    ],
    ids=["two maps", "three maps", "channels last", "signals", "volumes"],
)
def test_smaller_features_are_interpolated_as_torch_does_it(shapes, last):
    torch.manual_seed(0)
    features = [torch.randn(shape) for shape in shapes]
    layout = Layout(tuple(last), True, 1)
    parts = [part.movedim(-1, 1) if at_end else part for part, at_end in zip(features, last, strict=True)]
    largest = max((part.shape[2:] for part in parts), key=torch.Size.numel)
    output = torch.zeros(N, 1, *largest)
    mode = ("linear", "bilinear", "trilinear")[len(largest) - 1]
    expected = torch.cat([F.interpolate(part, largest, mode=mode) for part in parts], 1).flatten(2)
    torch.testing.assert_close(at_all(layout, features, output), expected, rtol=0, atol=1e-5)


# One vector for a whole map


def test_a_map_is_described_by_the_means_of_its_top_middle_and_bottom():
    values = torch.tensor([[1.0, 3.0], [5.0, 7.0], [9.0, 9.0]]).repeat_interleave(2, 0)  # (6, 2): thirds of two rows
    assert bands(values[None, None], False).tolist() == [[2, 6, 9]]
    assert bands(values[None, :, :, None], True).tolist() == [[2, 6, 9]]


def test_a_sequence_is_described_by_its_beginning_middle_and_end():
    values = torch.arange(6.0)[None, :, None] * torch.tensor([1.0, 10.0])  # (1, T, C)
    assert bands(values, True).tolist() == [[0.5, 2.5, 4.5, 5, 25, 45]]


def test_a_vector_describes_itself_and_fewer_than_three_positions_overlap():
    assert bands(torch.tensor([[1.0, 2.0]]), True).tolist() == [[1, 2]]
    assert bands(torch.tensor([[[4.0]]]), False).tolist() == [[4, 4, 4]]
    assert bands(torch.tensor([[[4.0, 8.0]]]), False).tolist() == [[4, 6, 8]]
