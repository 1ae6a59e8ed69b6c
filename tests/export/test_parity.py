"""What a file in ONNX Runtime says, against what the predictor says: every kind of prediction, any number of rows."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp
from splitpoint import runtime

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TOLERANCE = 1e-5


class Maps(nn.Module):
    """Two resolutions that are joined; maps of the size of the images."""

    def __init__(self, outputs):
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, stride=2)
        self.last = nn.Conv2d(16, outputs, 1)

    def forward(self, images):
        fine = torch.relu(self.fine(images))
        coarse = torch.relu(self.coarse(fine))
        return self.last(torch.cat([fine, F.interpolate(coarse, scale_factor=2)], 1))


def network(outputs):
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, outputs))


def numbers(rows, outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 5, generator=generator)
    y = x @ torch.randn(5, outputs, generator=torch.Generator().manual_seed(9))
    return x, y + torch.randn(rows, outputs, generator=generator) * (0.2 + x[:, :1].abs())


def classes(rows, count, seed):
    x, scores = numbers(rows, count, seed)
    return x, scores.argmax(1)


def images(rows, outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 3, 12, 16, generator=generator)
    return x, x[:, :1].repeat(1, outputs, 1, 1) + 0.3 * torch.randn(rows, outputs, 12, 16, generator=generator)


def pixels(rows, count, seed):
    x, y = images(rows, count, seed)
    return x, (y + torch.arange(count)[:, None, None] / count).argmax(1)


def built(make, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def checked(uq, tmp_path, inputs, more=None):
    """Export, and compare what the file says of other rows with the predictor."""
    path = tmp_path / "uq.onnx"
    worst = sp.export.onnx(uq, path, inputs[:3])
    assert worst <= TOLERANCE
    file = runtime.load(path, threads=1)
    for x in (inputs, inputs[3:4], *([] if more is None else [more])):
        prediction, found = uq(x), file(x.numpy())
        assert set(found) == set(file.fields)
        for name, own in found.items():
            agree(name, own, getattr(prediction, name), prediction)
    return file


def products(prediction):
    """What the self-consistency score is a difference of."""
    if isinstance(prediction, sp.RegressionPrediction):
        return 2 * (prediction.mar_up * prediction.mar_down).numpy()
    return prediction.mar.sum(1).numpy()


def agree(name, found, wanted, prediction):
    wanted = wanted.numpy()
    assert found.shape == wanted.shape, name
    assert found.dtype == wanted.dtype, name
    if name == "percentile":
        assert np.abs(found - wanted).max() <= 100 / (prediction.reference.quantiles.shape[-1] + 1) + 1e-3
        assert np.mean(np.abs(found - wanted) > 0.1) <= 0.01
    elif wanted.dtype.kind == "f":
        size = np.abs(wanted) + (products(prediction) if np.array_equal(wanted, prediction.sds.numpy()) else 0)
        assert (np.abs(found - wanted) / np.maximum(size, size.mean())).max() <= TOLERANCE, name
    else:
        assert np.array_equal(found, wanted), name


SHAPES = {"single": (numbers, 1, network), "several": (numbers, 3, network), "dense": (images, 2, Maps)}
LEVELS = {"one": 0.9, "three": (0.5, 0.8, 0.9)}


@pytest.mark.parametrize("interval", ["split", "consistent", "conformal"])
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_regression(interval, levels, shape, tmp_path):
    make, outputs, model = SHAPES[shape]
    rows = 24 if shape == "dense" else 200
    method = sp.SplitPointRegressor(interval=interval, confidence_level=LEVELS[levels], epochs=3, residuals="train")
    held_out = make(rows, outputs, 1) if interval == "conformal" else None
    uq = method.fit(built(lambda: model(outputs)), make(rows, outputs, 0), calibration=held_out, progress=False)
    x = make(rows, outputs, 3)[0]
    checked(
        uq.set_threshold(make(rows, outputs, 2)), tmp_path, x, x.repeat(1, 1, 2, 3)[:2] if shape == "dense" else None
    )


KINDS = {"one logit": (2, 1), "ten": (10, 10), "thousand": (1000, 1000), "dense": (4, 4)}


@pytest.mark.parametrize("mars", ["simplex", "free"])
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_classification(mars, calibrated, kind, tmp_path):
    count, outputs = KINDS[kind]
    make, model, rows = (pixels, Maps, 24) if kind == "dense" else (classes, network, 200)
    held_out = make(rows, count, 1) if calibrated else None
    method = sp.SplitPointClassifier(mars=mars, epochs=3)
    uq = method.fit(built(lambda: model(outputs)), make(rows, count, 0), calibration=held_out, progress=False)
    x = make(rows, count, 3)[0]
    checked(uq.set_threshold(make(rows, count, 2)), tmp_path, x, x.repeat(1, 1, 2, 3)[:2] if kind == "dense" else None)
