"""Recorded rows: the tail gives the network's own logits, files are whole or not there, and are read again."""

import pytest
import torch
from torch import nn

from splitpoint import SplitPointClassifier
from splitpoint.bench.networks import NETWORKS, factory
from splitpoint.bench.rows import Recorder, whole_row
from splitpoint.errors import SettingsError

SHAPES = {"lenet": (1, 28, 28)}


def recorder(folder, name="lenet"):
    torch.manual_seed(0)
    network = factory(name, 10, SHAPES.get(name, (3, 32, 32)))().eval()
    return Recorder(network, NETWORKS[name].stages, folder)


def pictures(name="lenet", batches=2, rows=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(rows, *SHAPES.get(name, (3, 32, 32)), generator=generator) for _ in range(batches)]


@pytest.mark.parametrize("name", ["lenet", "vgg16_small", "wide_resnet_small"])
def test_the_tail_gives_the_logits_of_the_network(tmp_path, name):
    found = recorder(tmp_path, name)
    rows = found.rows("test", "0", pictures(name), 6)
    expected = torch.cat([found.network(batch) for batch in pictures(name)])
    torch.testing.assert_close(found.tail(rows.rows), expected, rtol=1e-4, atol=1e-4)
    assert rows.rows.shape[1] > found.last[1].in_features
    assert rows.seconds >= 0


def test_heads_on_rows_say_what_heads_on_pictures_say(tmp_path):
    found = recorder(tmp_path)
    x, labels = torch.cat(pictures(batches=8, rows=16)), torch.arange(128) % 10
    method = SplitPointClassifier(epochs=2)
    rows = found.rows("all", "0", x.split(16), len(x)).rows
    on_rows = method.fit(found.tail, (rows, labels), progress=False).predict(rows)
    on_pictures = method.fit(found.network, (x, labels), progress=False).predict(x)
    torch.testing.assert_close(on_rows.epistemic, on_pictures.epistemic, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(on_rows.probs, on_pictures.probs, rtol=1e-3, atol=1e-5)


def test_several_layers_are_the_pooled_maps_and_the_last_features(tmp_path):
    found = recorder(tmp_path)
    rows = found.rows("test", "0", pictures(), 6).rows
    first = found.network.body[:3](found.network.normalise(pictures()[0]))
    torch.testing.assert_close(whole_row(rows)[:3, :6], first.mean((2, 3)))
    assert rows.shape[1] == 6 + 16 + 120 + 84


def test_rows_that_are_there_are_not_made_again(tmp_path):
    found = recorder(tmp_path)
    made = found.rows("test", "0", pictures(), 6)
    again = found.rows("test", "0", iter(()), 6)
    assert torch.equal(made.rows, again.rows)
    assert made.seconds == again.seconds


def test_rows_of_another_network_other_stages_and_other_pictures_are_others(tmp_path):
    found = recorder(tmp_path)
    made = found.rows("test", "0", pictures(), 6).rows
    other = recorder(tmp_path)
    with torch.no_grad():
        other.network.body[0].bias.add_(1)
    assert not torch.equal(other.rows("test", "0", pictures(), 6).rows, made)
    fewer = Recorder(found.network, found.stages[:1], tmp_path)
    assert fewer.rows("test", "0", pictures(), 6).rows.shape[1] < made.shape[1]
    dark = [0 * batch for batch in pictures()]
    assert not torch.equal(found.rows("test", "1", dark, 6).rows, made)


def test_an_interrupted_recording_leaves_no_rows(tmp_path):
    found = recorder(tmp_path)

    def interrupted():
        yield pictures()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.rows("test", "0", interrupted(), 6)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert found.rows("test", "0", pictures(), 6).rows.shape[0] == 6


def test_networks_that_do_not_end_in_a_linear_layer_are_refused(tmp_path):
    x = [torch.rand(2, 4)]
    with pytest.raises(SettingsError, match="ends in a linear layer"):
        Recorder(nn.ReLU(), (), tmp_path).rows("a", "0", x, 2)
    with pytest.raises(SettingsError, match="that of its last linear layer"):
        Recorder(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (), tmp_path).rows("b", "0", x, 2)
    with pytest.raises(SettingsError, match="Expected 5 pictures to record, but got 2"):
        Recorder(nn.Sequential(nn.Linear(4, 3)), (), tmp_path).rows("c", "0", x, 5)
