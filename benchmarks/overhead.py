"""What a prediction costs beside the bare model: forward-time ratios, predictor / base, measured in turns in one run.

    python benchmarks/overhead.py [--rounds 15] [--threads 1]

Each round times base, predictor, base, predictor ... so that a busy machine slows both; printed are the median and
the quartiles of the per-round ratios. Weights are random: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import splitpoint as sp
from networks import UNet, mlp
from splitpoint.bench.architectures import resnet18


def regression(net: nn.Module, x: Tensor) -> dict[str, nn.Module]:
    """Uncalibrated and conformal predictors of a regression network."""
    with torch.no_grad():
        y = net(x)
    y = y + torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    plain = sp.SplitPointRegressor(epochs=1).fit(net, (x, y), progress=False)
    calibrated = sp.SplitPointRegressor(epochs=1, interval="consistent").fit(net, (x, y), progress=False)
    conformal = sp.SplitPointRegressor(epochs=1).fit(net, (x, y), calibration=(x, y), progress=False)
    return {"split": plain, "consistent": calibrated, "conformal": conformal}


def classification(net: nn.Module, x: Tensor, classes: int) -> dict[str, nn.Module]:
    """Uncalibrated and calibrated predictors of a classifier, and the paper's heads."""
    labels = torch.randint(classes, (len(x),), generator=torch.Generator().manual_seed(0))
    paper = sp.SplitPointClassifier.paper(epochs=1)
    return {
        "uncalibrated": sp.SplitPointClassifier(epochs=1).fit(net, (x, labels), progress=False),
        "calibrated": sp.SplitPointClassifier(epochs=1).fit(net, (x, labels), calibration=(x, labels), progress=False),
        "paper preset": paper.fit(net, (x, labels), calibration=(x, labels), progress=False),
    }


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Time of one call."""
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def ratios(net: nn.Module, predictor: nn.Module, x: Tensor, rounds: int, repeats: int) -> tuple[Tensor, float]:
    """Per-round ratios, and the base model's median time in milliseconds."""
    with torch.no_grad():
        net(x), predictor(x)
        pairs = [(seconds(lambda: net(x), repeats), seconds(lambda: predictor(x), repeats)) for _ in range(rounds)]
    times = torch.tensor(pairs, dtype=torch.float64)
    return times[:, 1] / times[:, 0], 1000 * float(times[:, 0].median())


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images, frames, rows = torch.randn(8, 3, 224, 224), torch.randn(8, 3, 128, 160), torch.randn(256, 16)
    resnet, unet, small = resnet18(1000, (3, 224, 224)).eval(), UNet().eval(), mlp().eval()
    cases = [
        ("ResNet-18, 224 px, batch 8", resnet, images, classification(resnet, torch.randn(48, 3, 224, 224), 1000), 1),
        ("U-Net, 128x160, batch 8", unet, frames, regression(unet, frames), 1),
        ("MLP 16-64-64-1, batch 256", small, rows, regression(small, rows), 200),
    ]
    print("| network | predictor | base ms | ratio (median) | quartiles |\n|---|---|---|---|---|")
    for name, net, x, predictors, repeats in cases:
        for kind, predictor in predictors.items():
            found, base = ratios(net, predictor, x, options.rounds, repeats)
            low, middle, high = found.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
            print(f"| {name} | {kind} | {base:.2f} | {middle:.3f} | {low:.3f} .. {high:.3f} |", flush=True)
    print(
        "\nThe MLP does so little that Python and dispatch of the heads' small operations set its ratio: "
        "a fixed cost of some tenths of a millisecond per call, whatever the model."
    )


if __name__ == "__main__":
    main()
