"""Network and uncertainty in one ONNX file that runs without PyTorch; takes pip install 'splitpoint[onnx]'.

python examples/deploy_onnx.py
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
uq, x = load(sys.argv[1], threads=1), np.load(sys.argv[2])
parts = [uq(rows) for rows in np.split(x, [1, 8])]
np.savez(sys.argv[3], **{name: np.concatenate([part[name] for part in parts]) for name in uq.fields})
assert "torch" not in sys.modules
"""


def spots(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with a bright spot, and its size with noise that grows with it."""
    size, axis = 1 + 5 * torch.rand(rows, 1), torch.linspace(-8, 8, 16)
    spot = torch.exp(-(axis[:, None].square() + axis.square()) / size[:, :, None].square())
    return spot[:, None] + 0.1 * torch.rand(rows, 1, 16, 16), size * (1 + 0.1 * torch.randn(rows, 1))


def main() -> None:
    """Train, fit, write the file, run it in a process of its own, and compare."""
    torch.manual_seed(0)
    pairs = ((1, 32), (32, 64), (64, 128), (128, 256))
    stages = (nn.Sequential(nn.Conv2d(*pair, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) for pair in pairs)
    net = nn.Sequential(*stages, nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
    (x, y), optimiser = spots(1000), torch.optim.Adam(net.parameters(), lr=1e-3)
    for rows in torch.randint(len(x), (60, 64)):
        optimiser.zero_grad()
        nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
        optimiser.step()
    uq = sp.SplitPointRegressor(confidence_level=(0.5, 0.9)).fit(net, (x, y), calibration=spots(300), progress=False)
    with tempfile.TemporaryDirectory() as folder:
        new = spots(200)[0]
        path, inputs, outputs = (Path(folder) / name for name in ("uq.onnx", "x.npy", "out.npz"))
        print(f"worst difference when written: {sp.export.onnx(uq.set_threshold(spots(999)), path, new[:4]):.1e}")
        np.save(inputs, new.numpy())
        subprocess.run([sys.executable, "-c", WITHOUT_TORCH, path, inputs, outputs], check=True)
        compared, found = sp.export.Comparison(uq(new), 1e-5), np.load(outputs)
        print(f"without torch: {max(compared.difference(*field) for field in found.items()):.1e}", end=" ")
        size = path.stat().st_size / sum(value.nbytes for value in net.state_dict().values())
        print(f"in {len(found.files)} fields; file {size:.2f} times the weights of the network")


if __name__ == "__main__":
    main()
