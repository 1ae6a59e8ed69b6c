"""Networks, rows and comparisons that the tests of exports share."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp
from splitpoint import runtime

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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def checked(uq, path, inputs, *more, names=()):
    """Export with three rows, and compare what the file says of other rows with the predictor."""
    pack = lambda own: ((), dict(zip(names, own, strict=True))) if names else (own, {})  # noqa: E731
    args, kwargs = pack([x[:3] for x in inputs])
    assert sp.export.onnx(uq, path, *args, **kwargs) <= TOLERANCE
    file = runtime.load(path, threads=1)
    for rows in (inputs, [x[3:4] for x in inputs], *more):
        args, kwargs = pack(rows)
        prediction = uq(*args, **kwargs)
        args, kwargs = pack([x.numpy() for x in rows])
        found = file(*args, **kwargs)
        assert tuple(found) == file.fields
        for name, own in found.items():
            agree(name, own, getattr(prediction, name, None), prediction)
    return file


def made_of(name, wanted, prediction):
    """What a score is a difference of: products for SDS, and for `epistemic` beyond the reach of training rows."""
    regression = isinstance(prediction, sp.RegressionPrediction)
    product = 2 * (prediction.mar_up * prediction.mar_down).numpy() if regression else 0
    if np.array_equal(wanted, prediction.sds.numpy()):
        return product if regression else prediction.mar.sum(1).numpy()
    if name == "image_epistemic" or (name in ("aleatoric", "total", "support", "epistemic") and not regression):
        return np.maximum(1 - wanted, 0)  # nats
    if name == "epistemic" and regression:
        leverage = prediction.support.numpy()
        return np.where(wanted > 1.001 * product * (np.sqrt(1 + leverage) - 1), product, 0)
    return 0


def agree(name, found, wanted, prediction):
    wanted = getattr(prediction.image, name[6:]).numpy() if name.startswith("image_") else wanted.numpy()
    assert found.shape == wanted.shape, name
    assert found.dtype == wanted.dtype, name
    if name == "percentile":
        step = 100 / (prediction.reference.quantiles.shape[-1] + 1)
        assert np.abs(found - wanted).max() <= max(step, 0.1) + 1e-3
        assert np.mean(np.abs(found - wanted) > 0.1) <= 0.01
    elif wanted.dtype.kind == "f":
        size = np.maximum(np.abs(wanted) + made_of(name, wanted, prediction), np.abs(wanted).mean())
        assert (np.abs(found - wanted) / size).max() <= TOLERANCE, name
    else:
        assert np.array_equal(found, wanted), name
