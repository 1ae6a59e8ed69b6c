"""One file for network and uncertainty, run without PyTorch.

python examples/deploy_onnx.py

Fits both tasks, writes one ONNX file each, runs it in a process that never imports PyTorch, and compares. Needs
pip install 'splitpoint[onnx]'.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import splitpoint as sp

WITHOUT_TORCH = """
import sys, numpy as np
from splitpoint.runtime import load
uq = load(sys.argv[1], threads=1)
with np.load(sys.argv[2]) as inputs:
    parts = [uq(inputs[name]) for name in inputs]
found = {name: np.concatenate([part[name] for part in parts]) for name in uq.fields}
assert "torch" not in sys.modules
np.savez(sys.argv[3], **found)
"""


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: nn.Module) -> nn.Module:
    """The network after some steps of training."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for rows in torch.randint(len(x), (80, 64)):
        optimiser.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimiser.step()
    return model.eval()


def numbers(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a regression with noise that grows with the first input."""
    x = torch.randn(rows, 6)
    return x, x.sum(1, keepdim=True).sin() + (0.1 + 0.3 * x[:, :1].abs()) * torch.randn(rows, 1)


def bars(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images with a bright row or column, and which of eight it is."""
    label, x = torch.randint(8, (rows,)), torch.rand(rows, 1, 16, 16)
    for image, place in zip(x, label.tolist(), strict=True):
        image[0, 4 * (place % 4)] += 0.7 * (place < 4)
        image[0, :, 4 * (place % 4)] += 0.7 * (place >= 4)
    return x, label


def mlp() -> nn.Module:
    """A small network for tables."""
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def cnn() -> nn.Module:
    """A small network for images."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 8))


def deploy(uq: sp.RegressionPredictor | sp.ClassificationPredictor, x: torch.Tensor, folder: Path) -> None:
    """Export, run elsewhere with one row, a few and many, and compare."""
    path, inputs, outputs = folder / "uq.onnx", folder / "x.npz", folder / "out.npz"
    worst = sp.export.onnx(uq, path, x[:4])
    parts = x.split([1, 7, len(x) - 8])
    np.savez(inputs, **{f"batch{number}": part.numpy() for number, part in enumerate(parts)})
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, path, inputs, outputs], check=True)
    base = sum(tensor.numel() * tensor.element_size() for tensor in uq.base.state_dict().values())
    prediction, largest, name_of_largest = uq(x), 0.0, ""
    with np.load(outputs) as found:
        for name, own in found.items():
            wanted = getattr(prediction, name).numpy()
            if own.dtype.kind != "f":
                assert np.array_equal(own, wanted), name
            elif name != "percentile":
                gap = np.abs(own - wanted).max() / np.abs(wanted).mean()
                largest, name_of_largest = max((largest, name_of_largest), (float(gap), name))
        percent = np.abs(found["percentile"] - prediction.percentile.numpy()).max()
        print(f"{type(uq).__name__}: {len(found.files)} fields of {len(x)} rows in batches of 1, 7 and {len(x) - 8}")
        print(
            f"  worst difference when it was written {worst:.1e}, elsewhere {largest:.1e} ({name_of_largest}),", end=""
        )
        print(f" percentile {percent:.2f} points; flags and labels are the same")
    print(f"  file {path.stat().st_size / 1e3:.0f} kB, weights of the network {base / 1e3:.0f} kB")


def main() -> None:
    """Regression on a table, classification of images."""
    torch.manual_seed(0)
    regression = sp.SplitPointRegressor(confidence_level=(0.5, 0.9))
    classification = sp.SplitPointClassifier()
    with tempfile.TemporaryDirectory() as folder:
        data = numbers(1000)
        uq = regression.fit(trained(mlp(), *data, nn.MSELoss()), data, calibration=numbers(500), progress=False)
        deploy(uq.set_threshold(numbers(1000)), numbers(300)[0], Path(folder))
        data = bars(800)
        clf = classification.fit(
            trained(cnn(), *data, nn.CrossEntropyLoss()), data, calibration=bars(300), progress=False
        )
        deploy(clf.set_threshold(bars(999)), bars(100)[0], Path(folder))
    print("no process that made these predictions imported torch")


if __name__ == "__main__":
    main()
