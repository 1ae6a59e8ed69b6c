"""Exports of models of all kinds: places that are read, several inputs, inputs by name, sequences, other rivals."""

from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import splitpoint as sp
from export.networks import Maps, built, checked, classes, images, network, numbers
from splitpoint.baselines import METHODS

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Twice(nn.Module):
    """A layer that runs twice, and a method of features."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(5, 5), nn.Linear(5, 1)

    def encode(self, x):
        return torch.tanh(self.body(x))

    def forward(self, x):
        return self.last(self.body(torch.relu(self.encode(x))))


class Two(nn.Module):
    """Two inputs, whose branches are added up."""

    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
        self.right = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, left, right):
        return self.left(left) + self.right(right)


class Reader(nn.Module):
    """Tokens and a mask by name, and an object with logits, as in libraries of language models."""

    def __init__(self):
        super().__init__()
        self.words, self.mix, self.classifier = nn.Embedding(50, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, input_ids=None, attention_mask=None):
        weights = attention_mask[..., None].float()
        hidden = torch.tanh(self.mix(self.words(input_ids))) * weights
        return SimpleNamespace(logits=self.classifier(hidden.sum(1) / weights.sum(1).clamp(min=1.0)), hidden=hidden)


def tokens(rows, length, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (rows, length), generator=generator)
    mask = (torch.arange(length) < torch.randint(2, length + 1, (rows, 1), generator=generator)).long()
    return ids, mask


def fitted(make, data, layer=None, **settings):
    regression = data[-1].is_floating_point()
    method = (sp.SplitPointRegressor if regression else sp.SplitPointClassifier)(layer=layer, epochs=3, **settings)
    return method.fit(built(make) if callable(make) and not isinstance(make, nn.Module) else make, data, progress=False)


LAYERS = ["body:input@0", "body@1", "encode()", ["0:input", "2:input"], ["body:input@0", "encode()", "last:input"]]


@pytest.mark.parametrize("layer", [pytest.param(own, marks=pytest.mark.slow) for own in LAYERS[:-1]] + LAYERS[-1:])
def test_places(layer, tmp_path):
    model = (lambda: network(1)) if "0:input" in layer else Twice
    uq = fitted(model, numbers(200, 1, 0), layer, residuals="train").set_threshold(numbers(200, 1, 1))
    file = checked(uq, tmp_path / "uq.onnx", [numbers(20, 1, 2)[0]])
    assert file.layer == uq.layer


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_several_layers_of_maps(task, tmp_path):
    x, y = images(24, 1, 0)
    data = (x, y) if task == "regression" else (x, (y[:, 0] > 0.5).long())
    uq = fitted(lambda: Maps(1 if task == "regression" else 2), data, ["fine", "coarse", "last:input"])
    x = images(24, 1, 2)[0]
    file = checked(uq.set_threshold(images(24, 1, 1)[0]), tmp_path / "uq.onnx", [x], [x.repeat(1, 1, 3, 2)[:2]])
    assert {"image_epistemic", "image_flagged", "image_percentile"} <= set(file.fields)


def test_large_maps_go_through_at_once_whatever_their_number(tmp_path):
    """More than 4,096 positions, which a call works off row by row."""
    x = torch.rand(12, 3, 64, 66, generator=torch.Generator().manual_seed(0))
    x = x * torch.linspace(0.2, 1, 12)[torch.randperm(12, generator=torch.Generator().manual_seed(1)), None, None, None]
    uq = fitted(lambda: Maps(1), (x, x[:, :1]), residuals="train", dense_steps=5)
    checked(uq, tmp_path / "uq.onnx", [x[:5]])


@pytest.mark.slow
def test_two_inputs(tmp_path):
    (left, y), (right, _) = classes(200, 3, 0), classes(200, 3, 1)
    uq = fitted(Two, (left, right, y)).set_threshold((left.flip(0), right))
    assert len(uq.tap.branches) == 2
    new = [classes(20, 3, seed)[0] for seed in (2, 3)]
    checked(uq, tmp_path / "uq.onnx", new)
    checked(uq, tmp_path / "uq.onnx", new, names=("left", "right"))


@pytest.mark.slow
@pytest.mark.parametrize("names", [(), ("input_ids", "attention_mask")])
def test_tokens_of_any_length(names, tmp_path):
    ids, mask = tokens(200, 9, 0)
    data = [{"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 3}]
    uq = sp.SplitPointClassifier(epochs=3).fit(built(Reader), data, calibration=data, progress=False)
    uq.set_threshold([{"input_ids": own[0], "attention_mask": own[1]} for own in [tokens(200, 9, 1)]])
    file = checked(uq, tmp_path / "uq.onnx", tokens(20, 9, 2), tokens(7, 14, 3), names=names)
    assert file.inputs == ("input_ids", "attention_mask")


@pytest.mark.slow
def test_a_language_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, num_labels=3
    )
    model = built(lambda: transformers.BertForSequenceClassification(config))
    ids, mask = tokens(200, 9, 0)
    data = [{"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 3}]
    uq = sp.SplitPointClassifier(epochs=3).fit(model, data, calibration=data, progress=False)
    checked(uq, tmp_path / "uq.onnx", tokens(20, 9, 2), tokens(7, 14, 3), names=("input_ids", "attention_mask"))


@pytest.mark.slow
def test_sequences(tmp_path):
    x = torch.randn(48, 6, 5, generator=torch.Generator().manual_seed(0))
    uq = fitted(lambda: network(1), (x, x[..., :1].sin()), residuals="train").set_threshold(x.flip(0))
    checked(uq, tmp_path / "uq.onnx", [x[:20] + 0.1], [x.repeat(1, 3, 1)[:4] + 0.1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["temperature_scaling", "softmax", "ddu", "conformal", "gaussian", "oc", "laplace"])
def test_rivals_on_a_model_are_exported_or_refused_in_a_sentence(name, tmp_path):
    recipe = METHODS[name]
    data = numbers(200, 1, 0) if "regression" in recipe.tasks and name != "softmax" else classes(200, 3, 0)
    outputs = 1 if data[1].is_floating_point() else 3
    calibration = classes(200, 3, 1) if outputs == 3 else numbers(200, 1, 1)
    method = recipe(task="regression" if outputs == 1 else "classification")
    uq = method.fit(built(lambda: network(outputs)), data, calibration=calibration, progress=False)
    path, x = tmp_path / "uq.onnx", numbers(20, 1, 2)[0]
    worst = None
    with suppress(sp.ExportError):
        worst = sp.export.onnx(uq, path, x)
    assert path.exists() == (worst is not None)
    assert worst is None or worst <= 1e-5
