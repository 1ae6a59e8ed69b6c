"""What every method costs: training and inference relative to the plain network, all in one run.

    python benchmarks/methods_cost.py [--rounds 3] [--quick]

Training is CPU time of everything that a method needs until it can predict, the plain network of a post-hoc method
included, over CPU time of the plain network alone; all networks get the same epochs, split-point heads those of their
recipe. Inference is the time of one batch over the time of the plain network's. Both are medians over rounds, base and
methods in turns, on one thread. Data are synthetic: cost does not depend on them. The three networks are a UCI-size
perceptron, a U-Net for dense regression (the paper's efficiency columns are measured on one), and a LeNet.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from networks import UNet
from splitpoint.baselines import METHODS, train_network
from splitpoint.tasks import TASKS, TaskName

DENSE = (
    "splitpoint",
    "gaussian",
    "mc_dropout",
    "deep_ensemble",
    "evidential_regression",
    "evidential_quantile",
    "sqr_oc",
)


@dataclass(frozen=True)
class Case:
    """A network with data of its kind, the methods to measure and the epochs that all networks get."""

    name: str
    task: TaskName
    factory: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    epochs: int
    batch_size: int
    repeats: int
    methods: tuple[str, ...]


def perceptron() -> nn.Module:
    """One hidden layer of 50, as for the UCI sets."""
    return nn.Sequential(nn.Linear(8, 50), nn.ReLU(), nn.Linear(50, 1))


def lenet() -> nn.Module:
    """Two convolutions and three linear layers for 28x28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def cases(quick: bool) -> list[Case]:
    """The three networks."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows, images, frames = (200, 128, 4) if quick else (1000, 500, 16)
    of = {task: tuple(name for name, recipe in METHODS.items() if task in recipe.tasks) for task in TASKS}
    x = normal(rows, 8)
    mlp = Case(
        "MLP 8-50-1, 1,000 rows", "regression", perceptron,
        x, x[:, :1] + 0.3 * normal(rows, 1), 2 if quick else 40, 64, 50, of["regression"],
    )  # fmt: skip
    unet = Case(
        "U-Net, 3x32x48 -> 1x32x48, 16 frames", "regression", UNet,
        normal(frames, 3, 32, 48), normal(frames, 1, 32, 48), 1 if quick else 3, 8, 3, DENSE,
    )  # fmt: skip
    conv = Case(
        "LeNet, 1x28x28, 500 images", "classification", lenet, normal(images, 1, 28, 28),
        torch.randint(10, (images,), generator=generator), 1 if quick else 5, 64, 5, of["classification"],
    )  # fmt: skip
    return [mlp, unet, conv]


def cpu_seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of a call, and what it returned."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def measured(case: Case, rounds: int) -> list[tuple[str, float, float, float, float]]:
    """For every method: median and range of the training and inference ratios."""
    held = max(len(case.x) // 4, 2)
    data, calibration, batch = (case.x, case.y), (case.x[:held], case.y[:held]), case.x[: case.batch_size]
    training: dict[str, Any] = {"epochs": case.epochs, "batch_size": case.batch_size}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in case.methods}
    for _ in range(rounds):
        base_cost, base = cpu_seconds(
            lambda: train_network(case.factory, data, task=case.task, progress=False, **training)
        )
        for name in case.methods:
            post_hoc = METHODS[name].start == "model"
            method = METHODS[name](task=case.task, **({} if post_hoc else training))
            given = base if post_hoc else case.factory
            cost, uq = cpu_seconds(lambda m=method, g=given: m.fit(g, data, calibration=calibration, progress=False))
            cost += base_cost if post_hoc else 0
            with torch.no_grad():
                plain = cpu_seconds(lambda b=base: [b(batch) for _ in range(case.repeats)])[0]
                own = cpu_seconds(lambda u=uq: [u(batch) for _ in range(case.repeats)])[0]
            found[name].append((cost / base_cost, own / plain))
    rows = []
    for name, pairs in found.items():
        training, inference = zip(*pairs, strict=True)
        spread = max(inference) - min(inference)
        rows.append(
            (name, statistics.median(training), max(training) - min(training), statistics.median(inference), spread)
        )
    return rows


def main() -> None:
    """Print one Markdown table for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="tiny data, to see that it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in cases(options.quick):
        print(f"\n{case.name}, {case.epochs} epochs, {options.rounds} rounds: median (range)\n")
        print("| method | post-hoc | training / plain network | inference / plain network |\n|---|---|---|---|")
        for name, training, wide, inference, spread in measured(case, options.rounds):
            kind = "yes" if METHODS[name].start == "model" else "no"
            print(f"| {name} | {kind} | {training:.2f} ({wide:.2f}) | {inference:.2f} ({spread:.2f}) |", flush=True)


if __name__ == "__main__":
    main()
