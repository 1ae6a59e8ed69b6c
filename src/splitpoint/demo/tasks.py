"""The two tasks of the demonstration: what is fitted, on what, and the figures that come out.

The base networks are small and trained the ordinary way, knowing nothing of uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from sklearn.datasets import load_digits as sklearn_digits
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from splitpoint.attacks import fgsm
from splitpoint.classification import SplitPointClassifier
from splitpoint.consistency import entropy
from splitpoint.datasets import Cubic, cubic
from splitpoint.metrics import accuracy, auroc, ece, mpiw, nll, picp, picp_down, picp_up, winkler
from splitpoint.networks import seeded
from splitpoint.prediction import ClassificationPrediction, RegressionPrediction
from splitpoint.regression import SplitPointRegressor

LEVEL = 0.95
SUPPORT = 4.0
REACH = 6.0
EPSILON = 0.1

Row: TypeAlias = tuple[str, ...]
CUBIC_HEADER: Row = ("interval", "coverage", "above", "below", "width", "Winkler", "AUROC |x|>4")
CALIBRATION_HEADER: Row = ("probabilities", "accuracy", "ECE", "NLL")
DETECTION_HEADER: Row = ("score", "AUROC errors", f"FGSM {EPSILON}", "OOD")


# Networks


class CubicNet(nn.Module):
    """Two hidden layers of 64 units on one input; works in units of the task's own scales."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1) -> (N, 1)."""
        out: Tensor = self.body(x / 2) * self.scale
        return out


class DigitsNet(nn.Module):
    """A small convolutional network for 8x8 images: two convolutions, one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        maps = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(*maps, nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU())
        self.classes = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, 8, 8) -> logits (N, 10)."""
        out: Tensor = self.classes(self.body(x))
        return out


def train_cubic(x: Tensor, y: Tensor, seed: int, progress: bool, epochs: int = 1500) -> CubicNet:
    """Least squares, full batch, Adam at 1e-3."""
    with seeded(seed):
        net = CubicNet(float(y.std()))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in tqdm(range(epochs), desc="cubic base network", leave=False, disable=not progress):
        optimiser.zero_grad()
        F.mse_loss(net(x) / net.scale, y / net.scale).backward()
        optimiser.step()
    return net.eval()


def train_digits(x: Tensor, y: Tensor, seed: int, progress: bool, epochs: int = 40) -> DigitsNet:
    """Cross-entropy, batches of 32, Adam at 1e-3."""
    with seeded(seed):
        net = DigitsNet()
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in tqdm(range(epochs), desc="digits base network", leave=False, disable=not progress):
        for rows in torch.randperm(len(x), generator=generator).split(32):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return net.eval()


# Tasks


@dataclass(frozen=True)
class CubicResult:
    """Predictions on a grid over [-6, 6] and scores on fresh rows, for each calibration of the interval."""

    train: Cubic
    grid: Tensor
    on_grid: dict[str, RegressionPrediction]
    table: list[Row]


@dataclass(frozen=True)
class DigitsResult:
    """Probabilities on the test rows and how well scores find errors, attacked inputs and those out of distribution."""

    label: Tensor
    out: ClassificationPrediction
    ood: ClassificationPrediction
    calibration_table: list[Row]
    detection_table: list[Row]


def run_cubic(seed: int, progress: bool) -> CubicResult:
    """Cubic regression with log-normal noise: trained on [-4, 4], asked about [-6, 6]."""
    generator = torch.Generator().manual_seed(seed)
    train, calibration_rows, test = (cubic(rows, generator=generator) for rows in (2000, 500, 4000))
    wide = cubic(4000, limit=REACH, generator=generator)
    net = train_cubic(train.x, train.y, seed, progress)
    grid = torch.linspace(-REACH, REACH, 481)[:, None]
    on_grid, table = {}, [CUBIC_HEADER]
    for name in ("split", "consistent", "conformal"):
        method = SplitPointRegressor(confidence_level=LEVEL, interval=name)
        calibration = (calibration_rows.x, calibration_rows.y) if name == "conformal" else None
        uq = method.fit(net, (train.x, train.y), calibration=calibration, seed=seed, progress=progress)
        on_grid[name] = uq(grid)
        out, far = uq(test.x), uq(wide.x)
        beyond = wide.x.abs().flatten() > SUPPORT
        score = far.support.flatten()
        shares = [f"{metric(out, test.y):.3f}" for metric in (picp, picp_up, picp_down)]
        sizes = [f"{metric(out, test.y):.1f}" for metric in (mpiw, winkler)]
        table.append((name, *shares, *sizes, f"{auroc(score[~beyond], score[beyond]):.3f}"))
    return CubicResult(train, grid, on_grid, table)


def run_digits(seed: int, progress: bool) -> DigitsResult:
    """A small CNN on scikit-learn's digits, with calibration rows of its own."""
    x, y = load_digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, held_out, test = order[:900], order[900:1300], order[1300:]
    net = train_digits(x[train], y[train], seed, progress)
    uq = SplitPointClassifier().fit(
        net, (x[train], y[train]), calibration=(x[held_out], y[held_out]), seed=seed, progress=progress
    )
    uq.set_threshold((x[held_out], y[held_out]))
    out = uq(x[test])
    attacked = uq(fgsm(net, x[test], y[test], EPSILON))
    ood = uq(shuffled_pixels(x[test], seed))
    wrong = out.base_probs.argmax(1) != y[test]
    calibration = [CALIBRATION_HEADER] + [
        (name, f"{100 * accuracy(p, y[test]):.1f}%", f"{ece(p, y[test]):.4f}", f"{nll(p, y[test]):.4f}")
        for name, p in (("base model", out.base_probs), ("calibrated", out.probs))
    ]
    detection = [DETECTION_HEADER]
    for name in ("support", "total", "entropy of the base softmax"):
        clean, hit, far = (_score(part, name) for part in (out, attacked, ood))
        found = (auroc(clean[~wrong], clean[wrong]), auroc(clean, hit), auroc(clean, far))
        detection.append((name, *(f"{value:.3f}" for value in found)))
    return DigitsResult(y[test], out, ood, calibration, detection)


def _score(out: ClassificationPrediction, name: str) -> Tensor:
    return {"support": out.support, "total": out.total}.get(name, entropy(out.base_probs))


def load_digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) in [0, 1] and labels."""
    images, labels = sklearn_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def shuffled_pixels(x: Tensor, seed: int) -> Tensor:
    """Out-of-distribution inputs: the same grey values at one random permutation of the places."""
    places = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
    return x.flatten(1)[:, places].reshape(x.shape)
