"""The two tasks of the demonstration: what is fitted, on what, and the figures that come out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits as sklearn_digits
from torch import Tensor

from splitpoint.attacks import fgsm
from splitpoint.classification import SplitPointClassifier
from splitpoint.consistency import entropy
from splitpoint.datasets import Cubic, cubic
from splitpoint.demo.networks import train_cubic, train_digits
from splitpoint.metrics import accuracy, auroc, ece, mpiw, nll, picp, picp_down, picp_up, winkler
from splitpoint.prediction import ClassificationPrediction, RegressionPrediction
from splitpoint.regression import SplitPointRegressor

LEVEL = 0.95
SUPPORT = 4.0
REACH = 6.0
EPSILON = 0.1


@dataclass(frozen=True)
class CubicResult:
    """Predictions on a grid over [-6, 6] and scores on fresh rows, for each calibration of the interval."""

    train: Cubic
    grid: Tensor
    on_grid: dict[str, RegressionPrediction]
    table: list[tuple[str, ...]]


@dataclass(frozen=True)
class DigitsResult:
    """Probabilities on the test rows and how well scores find errors, attacked inputs and those out of distribution."""

    label: Tensor
    out: ClassificationPrediction
    ood: ClassificationPrediction
    calibration_table: list[tuple[str, ...]]
    detection_table: list[tuple[str, ...]]


def run_cubic(seed: int, progress: bool) -> CubicResult:
    """Cubic regression with log-normal noise: trained on [-4, 4], asked about [-6, 6]."""
    generator = torch.Generator().manual_seed(seed)
    train, calibration_rows, test = (cubic(rows, generator=generator) for rows in (2000, 500, 4000))
    wide = cubic(4000, limit=REACH, generator=generator)
    net = train_cubic(train.x, train.y, seed, progress)
    grid = torch.linspace(-REACH, REACH, 481)[:, None]
    on_grid, table = {}, []
    for name in ("split", "consistent", "conformal"):
        method = SplitPointRegressor(confidence_level=LEVEL, interval=name)
        calibration = (calibration_rows.x, calibration_rows.y) if name == "conformal" else None
        uq = method.fit(net, (train.x, train.y), calibration=calibration, seed=seed, progress=progress)
        on_grid[name] = uq(grid)
        out, far = uq(test.x), uq(wide.x)
        beyond = wide.x.abs().flatten() > SUPPORT
        score = far.epistemic.flatten()
        shares = [metric(out, test.y) for metric in (picp, picp_up, picp_down)]
        detected = auroc(score[~beyond], score[beyond])
        table.append(
            (
                name,
                *(f"{share:.3f}" for share in shares),
                f"{mpiw(out, test.y):.1f}",
                f"{winkler(out, test.y):.1f}",
                f"{detected:.3f}",
            )
        )
    return CubicResult(train, grid, on_grid, table)


CUBIC_HEADER = ("interval", "coverage", "above", "below", "width", "Winkler", "AUROC |x|>4")


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
    calibration: list[tuple[str, ...]] = [
        (name, f"{100 * accuracy(p, y[test]):.1f}%", f"{ece(p, y[test]):.4f}", f"{nll(p, y[test]):.4f}")
        for name, p in (("base model", out.base_probs), ("calibrated", out.probs))
    ]
    detection: list[tuple[str, ...]] = []
    for name in ("epistemic", "total", "entropy of the base softmax"):
        clean, hit, far = (_score(part, name) for part in (out, attacked, ood))
        found = (auroc(clean[~wrong], clean[wrong]), auroc(clean, hit), auroc(clean, far))
        detection.append((name, *(f"{value:.3f}" for value in found)))
    return DigitsResult(y[test], out, ood, calibration, detection)


CALIBRATION_HEADER = ("probabilities", "accuracy", "ECE", "NLL")
DETECTION_HEADER = ("score", "AUROC errors", f"FGSM {EPSILON}", "OOD")


def _score(out: ClassificationPrediction, name: str) -> Tensor:
    return {"epistemic": out.epistemic, "total": out.total}.get(name, entropy(out.base_probs))


def load_digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) in [0, 1] and labels."""
    images, labels = sklearn_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def shuffled_pixels(x: Tensor, seed: int) -> Tensor:
    """Out-of-distribution inputs: the same grey values at one random permutation of the places."""
    places = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
    return x.flatten(1)[:, places].reshape(x.shape)
