"""How time and memory of a fit grow with the number of classes and with the number of rows.

    python benchmarks/rows_and_classes.py [--quick] [--only NAME ...]

Every fit runs in a process of its own with one thread, with the settings of the constructor, on synthetic features of
a network that is one linear layer. CPU seconds are those of `fit` with calibration data; memory is the peak of the
process less that of one that has imported the library and drawn the data. The exponent of a cost is the slope of its
logarithm over that of the size, from the second smallest size to the largest: 1 is in proportion, and what stays the
same is 0.

- classes: `SplitPointClassifier` with 2,000 rows and 500 for calibration, 16 features, up to 100,000 classes.
- regression-16, regression-64: `SplitPointRegressor` with as many features, up to 1,000,000 rows and a tenth for
  calibration.
- classification: `SplitPointClassifier` with 10 classes and 16 features, up to 1,000,000 rows and a tenth for
  calibration.

`--quick` stops at a tenth of the largest sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import splitpoint as sp

SIZES = {
    "classes": (1_000, 10_000, 30_000, 100_000),
    "regression-16": (10_000, 100_000, 300_000, 1_000_000),
    "regression-64": (10_000, 100_000, 300_000, 1_000_000),
    "classification": (10_000, 100_000, 300_000, 1_000_000),
}
"""What grows: classes, or rows."""

ROWS, HELD_OUT = 2_000, 500


class Cost(NamedTuple):
    """CPU seconds and bytes of one fit."""

    size: int
    seconds: float
    memory: float


def drawn(rows: int, network: nn.Linear, seed: int, *, classes: bool) -> tuple[Tensor, Tensor]:
    """Rows of a problem that the network knows the answer of."""
    generator = torch.Generator().manual_seed(seed)
    if not classes:
        x = torch.randn(rows, network.in_features, generator=generator)
        noise = torch.randn(rows, 1, generator=generator) * (0.2 + x[:, :1].abs())
        return x, network(x) + noise
    label = torch.randint(network.out_features, (rows,), generator=generator)
    return network.weight[label] + torch.randn(rows, network.in_features, generator=generator), label


@torch.no_grad()
def problem(name: str, size: int) -> tuple[nn.Linear, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Network, training rows and calibration rows."""
    torch.manual_seed(0)
    rows, held_out = (ROWS, HELD_OUT) if name == "classes" else (size, size // 10)
    if name.startswith("regression"):
        network, classes = nn.Linear(int(name.partition("-")[2]), 1).eval(), False
    else:
        network, classes = nn.Linear(16, size if name == "classes" else 10).eval(), True
        network.weight.copy_(3 / 4 * torch.randn(network.out_features, 16))
        network.bias.copy_(-network.weight.square().sum(1) / 2)
    return network, drawn(rows, network, 1, classes=classes), drawn(held_out, network, 2, classes=classes)


def fit_once(name: str, size: int) -> Cost:
    """Fit in this process."""
    network, data, calibration = problem(name, size)
    method = sp.SplitPointRegressor(0.9) if name.startswith("regression") else sp.SplitPointClassifier()
    before, began = memory("VmRSS"), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.SplitPointWarning)
        method.fit(network, data, calibration=calibration, progress=False)
    seconds = time.process_time() - began
    return Cost(size, seconds, memory("VmHWM") - before)


def memory(which: str) -> float:
    """Bytes of this process now ("VmRSS") or at most so far ("VmHWM").

    The system says so of the program alone; the figures of `resource` begin with those of the process that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(f"{which}:"))


def measured(name: str, size: int) -> Cost:
    """The cost of a fit in a process of its own."""
    command = [sys.executable, __file__, "--fit", name, str(size)]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def costs(name: str, quick: bool) -> list[Cost]:
    """The costs of all sizes."""
    largest = SIZES[name][-1] // (10 if quick else 1)
    return [measured(name, size) for size in SIZES[name] if size <= largest]


def exponents(found: list[Cost]) -> tuple[float, float]:
    """Of time and memory, from the second smallest size on, or from the smallest where there are two."""
    first, last = found[min(1, len(found) - 2)], found[-1]
    span = math.log(last.size / first.size)
    return math.log(last.seconds / first.seconds) / span, math.log(last.memory / first.memory) / span


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to a tenth of the sizes")
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--fit", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        print(json.dumps(fit_once(options.fit[0], int(options.fit[1]))))
        return
    print("| what | size | CPU seconds | memory, MB |\n| :-- | --: | --: | --: |")
    slopes = []
    for name in options.only:
        found = costs(name, options.quick)
        for cost in found:
            print(f"| {name} | {cost.size:,} | {cost.seconds:.1f} | {cost.memory / 2**20:.0f} |", flush=True)
        slopes.append(f"{name}: exponent of time {exponents(found)[0]:.2f}, of memory {exponents(found)[1]:.2f}")
    print("\n".join(["", *slopes]))


if __name__ == "__main__":
    main()
