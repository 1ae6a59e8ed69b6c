"""Recorded rows: they give the network's own logits, files are whole or not there, and are read again."""

import os
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from splitpoint import SplitPointClassifier
from splitpoint.bench.image_rows import LabelledRows, Recorder, RowFits
from splitpoint.bench.networks import NETWORKS, factory
from splitpoint.errors import SettingsError
from splitpoint.files import drop_stale_drafts, replacing

SHAPES = {"lenet": (1, 28, 28)}


def recorder(folder, name="lenet"):
    torch.manual_seed(0)
    network = factory(name, 10, SHAPES.get(name, (3, 32, 32)))().eval()
    return Recorder(network, NETWORKS[name].stages, folder)


def images(name="lenet", batches=2, rows=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(rows, *SHAPES.get(name, (3, 32, 32)), generator=generator) for _ in range(batches)]


@pytest.mark.parametrize("name", ["lenet", "vgg16_small", "wide_resnet_small"])
def test_rows_give_the_logits_of_the_network(tmp_path, name):
    found = recorder(tmp_path, name)
    rows = found.rows("test", "0", images(name), 6)
    expected = torch.cat([found.network(batch) for batch in images(name)])
    torch.testing.assert_close(rows.logits(), expected, rtol=1e-4, atol=1e-4)
    assert rows.values.shape[1] > rows.features().shape[1] == rows.last.in_features
    assert torch.equal(rows.features(layers=True), rows.values)
    assert rows.seconds >= 0


def test_heads_on_rows_say_what_heads_on_images_say(tmp_path):
    found = recorder(tmp_path)
    x, labels = torch.cat(images(batches=8, rows=16)), torch.arange(128) % 10
    method = SplitPointClassifier(epochs=2)
    rows = found.rows("all", "0", x.split(16), len(x))
    fitted = method.fit_rows(found.recording(rows, labels), progress=False)
    on_images = method.fit(found.network, (x, labels), progress=False).predict(x)
    for on_rows in (rows.predicted_by(fitted), fitted.predict(x)):
        torch.testing.assert_close(on_rows.epistemic, on_images.epistemic, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(on_rows.probs, on_images.probs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", [SplitPointClassifier(epochs=2), SplitPointClassifier.paper(epochs=2)], ids=str)
def test_heads_without_calibration_know_nothing_of_its_rows(tmp_path, method):
    found = recorder(tmp_path)
    x, labels = torch.cat(images(batches=12, rows=16)), torch.arange(192) % 10
    train, held_out = (found.rows(str(n), str(n), part.split(16), 96) for n, part in enumerate(x.split(96)))
    fits = RowFits(found, LabelledRows("calibration", held_out, labels[96:]), 0)
    data = LabelledRows("train", train, labels[:96])
    calibrated, _ = fits.fit(method, data, calibrated=True)
    plain, _ = fits.fit(method, data, calibrated=False)
    alone = method.fit_rows(found.recording(train, labels[:96]), progress=False)
    assert plain.own_tensors().keys() == alone.own_tensors().keys() < calibrated.own_tensors().keys()
    for name, expected in alone.own_tensors().items():
        torch.testing.assert_close(plain.own_tensors()[name], expected, equal_nan=True, msg=name)


def test_several_layers_are_the_pooled_maps_and_the_last_features(tmp_path):
    found = recorder(tmp_path)
    rows = found.rows("test", "0", images(), 6).values
    first = found.network.body[:3](found.network.normalise(images()[0]))
    torch.testing.assert_close(rows[:3, :6], first.mean((2, 3)))
    assert rows.shape[1] == 6 + 16 + 120 + 84


def test_rows_that_are_there_are_not_made_again(tmp_path):
    found = recorder(tmp_path)
    made = found.rows("test", "0", images(), 6)
    again = found.rows("test", "0", iter(()), 6)
    assert torch.equal(made.values, again.values)
    assert made.seconds == again.seconds


def test_rows_of_another_network_other_stages_and_other_images_are_others(tmp_path):
    found = recorder(tmp_path)
    made = found.rows("test", "0", images(), 6).values
    other = recorder(tmp_path)
    with torch.no_grad():
        other.network.body[0].bias.add_(1)
    assert not torch.equal(other.rows("test", "0", images(), 6).values, made)
    fewer = Recorder(found.network, found.stages[:1], tmp_path)
    assert fewer.rows("test", "0", images(), 6).values.shape[1] < made.shape[1]
    dark = [0 * batch for batch in images()]
    assert not torch.equal(found.rows("test", "1", dark, 6).values, made)


def test_an_interrupted_recording_leaves_no_rows(tmp_path):
    found = recorder(tmp_path)

    def interrupted():
        yield images()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.rows("test", "0", interrupted(), 6)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert found.rows("test", "0", images(), 6).values.shape[0] == 6


# What killed recordings leave behind


def draft_of(path, monkeypatch, process):
    """A draft of `path` as a process of this number leaves it when it is killed."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: process)
        with replacing(path) as draft:
            pass
    path.unlink()
    draft.write_bytes(b"half of the ro")
    return draft


def gone():
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    return ended.pid


def age(path, hours):
    then = time.time() - 3600 * hours
    os.utime(path, (then, then))


def test_a_recording_drops_drafts_of_processes_that_are_gone(tmp_path, monkeypatch):
    found = recorder(tmp_path)
    found.folder.mkdir()
    left = draft_of(found.folder / "test-0.npy", monkeypatch, gone())
    others = draft_of(found.folder / "test-1.npy", monkeypatch, gone())
    found.rows("test", "0", images(), 6)
    assert not left.exists()
    assert others.exists(), "it is of another target"
    assert sorted(path.name for path in found.folder.iterdir()) == ["test-0.npy", "test-0.seconds", others.name]


def test_drafts_that_nobody_holds_stay_for_an_hour_while_their_process_lives(tmp_path, monkeypatch):
    path = tmp_path / "rows[1].npy"
    living, elsewhere = (draft_of(path, monkeypatch, number) for number in (os.getpid(), os.getppid()))
    drop_stale_drafts(path)
    assert [draft.exists() for draft in (living, elsewhere)] == [True] * 2
    age(elsewhere, 1.1)
    age(living, 0.9)
    drop_stale_drafts(path)
    assert [draft.exists() for draft in (living, elsewhere)] == [True, False]


def test_drafts_of_another_machine_stay_for_an_hour(tmp_path, monkeypatch):
    path = tmp_path / "rows.npy"
    with monkeypatch.context() as patch:
        patch.setattr("platform.node", lambda: "another")
        draft = draft_of(path, monkeypatch, gone())
    drop_stale_drafts(path)
    assert draft.exists()
    age(draft, 2)
    drop_stale_drafts(path)
    assert not draft.exists()


def test_networks_that_do_not_end_in_a_linear_layer_are_refused(tmp_path):
    x = [torch.rand(2, 4)]
    with pytest.raises(SettingsError, match="ends in a linear layer"):
        Recorder(nn.ReLU(), (), tmp_path).rows("a", "0", x, 2)
    with pytest.raises(SettingsError, match="that of its last linear layer"):
        Recorder(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (), tmp_path).rows("b", "0", x, 2)
    with pytest.raises(SettingsError, match="Expected 5 images to record, but got 2"):
        Recorder(nn.Sequential(nn.Linear(4, 3)), (), tmp_path).rows("c", "0", x, 5)
