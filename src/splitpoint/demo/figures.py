"""The figures of the demonstration (matplotlib, no display needed)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from splitpoint.datasets.cubic import side_quantiles
from splitpoint.demo.tasks import LEVEL, REACH, SUPPORT, CubicResult, DigitsResult

BLUE, ORANGE, GREY = "#0b6aa2", "#d1590f", "#667080"
TITLES = {
    "split": "split-point interval (no calibration)",
    "consistent": "consistency calibration",
    "conformal": "conformal calibration",
}


def _tidy(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def draw_cubic(result: CubicResult, path: Path) -> None:
    """Top row: truth and predicted bounds; bottom row: epistemic score; the training range is shaded."""
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey="row", height_ratios=[2, 1])
    x = result.grid.flatten()
    down, up = side_quantiles("log_normal", LEVEL)
    for column, (name, out) in enumerate(result.on_grid.items()):
        top, bottom = axes[0][column], axes[1][column]
        for axis in (top, bottom):
            axis.axvspan(-SUPPORT, SUPPORT, color="#eef3f7", zorder=0)
            _tidy(axis)
        top.scatter(result.train.x[::2], result.train.y[::2], s=5, color=GREY, alpha=0.45, lw=0, label="training data")
        top.plot(x, x**3, "--", color="black", lw=1, label="true mean and 95% bounds")
        top.plot(x, x**3 + up, "--", x, x**3 - down, "--", color="black", lw=1)
        top.plot(x, out.mean.flatten(), color=BLUE, lw=1.5, label="prediction")
        lower, upper = out.lower.flatten(), out.upper.flatten()
        top.fill_between(x, lower, upper, color=BLUE, alpha=0.22, lw=0, label="predicted 95% interval")
        top.set_title(TITLES[name], fontsize=10)
        top.set_ylim(-230, 260)
        bottom.fill_between(x, 0, out.epistemic.flatten().sqrt(), color=ORANGE, alpha=0.35, lw=0)
        bottom.plot(x, out.epistemic.flatten().sqrt(), color=ORANGE, lw=1.2)
        bottom.set_xlabel("x   (shaded: range of the training data)", fontsize=9)
        bottom.set_xlim(-REACH, REACH)
    axes[0][0].set_ylabel("y", fontsize=9)
    axes[1][0].set_ylabel("epistemic score, √SDS", fontsize=9)
    axes[0][0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(path, dpi=130)


def draw_digits(result: DigitsResult, path: Path) -> None:
    """Reliability before and after calibration, and the epistemic score on digits and on foreign inputs."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    reliability, histogram = figure.subplots(1, 2)
    reliability.plot([0, 1], [0, 1], "--", color="black", lw=1)
    pairs = (("base model", result.out.base_probs, GREY), ("calibrated", result.out.probs, BLUE))
    for name, probs, colour in pairs:
        confidence, choice = probs.max(1)
        correct = (choice == result.label).float()
        groups = torch.tensor_split(confidence.argsort(), 8)
        points = torch.tensor([[confidence[g].mean(), correct[g].mean()] for g in groups])
        reliability.plot(points[:, 0], points[:, 1], "o-", color=colour, ms=4, lw=1.2, label=name)
    reliability.set(xlim=(0.75, 1.005), ylim=(0.75, 1.02), xlabel="confidence", ylabel="accuracy")
    reliability.set_title("reliability (eight groups of equal size)", fontsize=10)
    reliability.legend(fontsize=8, frameon=False)
    floor = 1e-6
    clean, foreign = ((part.epistemic + floor).log10() for part in (result.out, result.foreign))
    bins = torch.linspace(float(clean.min()), float(foreign.max()), 40).numpy()
    histogram.hist(clean, bins, color=BLUE, alpha=0.5, label="digits (test)")
    histogram.hist(foreign, bins, color=ORANGE, alpha=0.5, label="shuffled pixels (OOD)")
    assert result.out.reference is not None
    threshold = (result.out.reference.threshold + floor).log10()
    histogram.axvline(float(threshold), color="black", ls="--", lw=1, label="threshold (95% of calibration digits)")
    histogram.set(xlabel="log10 epistemic score", ylabel="images")
    histogram.set_title("epistemic score", fontsize=10)
    histogram.legend(fontsize=8, frameon=False)
    for axis in (reliability, histogram):
        _tidy(axis)
    figure.savefig(path, dpi=130)
