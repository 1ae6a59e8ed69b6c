"""Networks of several modalities: LUMA's sizes, the mean of the logits, and branches that are left out."""

import pytest
import torch

from splitpoint.bench.modal_networks import feature_layers, late_fusion
from splitpoint.errors import DataError

LUMA = {"image": (3, 32, 32), "audio": (1, 128, 128), "text": (768,)}


def inputs(shapes, rows=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(rows, *shape, generator=generator) for shape in shapes.values()]


def test_on_lumas_inputs_the_branches_are_lumas():
    network = late_fusion(LUMA, 42)
    linear = {name: branch.output for name, branch in network.branches.items()}
    assert {name: (one.in_features, one.out_features) for name, one in linear.items()} == {
        "image": (2304, 42),
        "audio": (12544, 42),
        "text": (256, 42),
    }
    hidden = [layer.out_features for layer in network.branches["text"].features if hasattr(layer, "out_features")]
    assert hidden == [512, 256]
    kernels = [
        (layer.kernel_size[0], layer.out_channels)
        for layer in network.branches["audio"].features
        if hasattr(layer, "kernel_size") and hasattr(layer, "out_channels")
    ]
    assert kernels == [(5, 32), (3, 64), (3, 64)]


def test_logits_are_the_mean_of_the_branches_that_are_there():
    shapes = {"image": (3, 16, 16), "audio": (1, 48, 48), "view": (5,)}
    network, given = late_fusion(shapes, 4, width=2).eval(), inputs(shapes)
    each = [branch(one) for branch, one in zip(network.branches.values(), given, strict=True)]
    torch.testing.assert_close(network(*given), sum(each) / 3)
    torch.testing.assert_close(network(given[0], None, given[2]), (each[0] + each[2]) / 2)
    with pytest.raises(DataError, match="at least one modality"):
        network(None, None, None)


def test_features_are_what_the_last_layers_read():
    shapes = {"first": (4,), "second": (3,)}
    network, seen = late_fusion(shapes, 2), {}
    for name, layer in feature_layers(tuple(shapes)).items():
        network.get_submodule(layer).register_forward_hook(lambda *a, name=name: seen.update({name: a[2]}))
        network.branches[name].output.register_forward_pre_hook(lambda *a, name=name: seen.update({name + "?": a[1]}))
    network(*inputs(shapes))
    assert all(seen[name] is seen[name + "?"][0] for name in shapes)


def test_dropout_spares_the_inputs():
    network = late_fusion({"image": (3, 16, 16), "view": (5,)}, 4, width=2, dropout=0.3)
    kinds = [[type(layer).__name__ for layer in branch.features] for branch in network.branches.values()]
    assert kinds[0][-2:] == ["Flatten", "Dropout"]
    assert kinds[1] == ["Linear", "ReLU", "Dropout"]


def test_maps_of_an_unknown_kind_are_refused():
    with pytest.raises(DataError, match="modality among image, audio, but got 'radar' of shape"):
        late_fusion({"radar": (1, 16, 16)}, 3)
