"""What dense outputs cost: forward-time ratios of a U-Net, predictor / base, and the memory of a fit.

    python benchmarks/dense.py [--rounds 15] [--threads 1] [--images 795]

Base and predictor take turns in one process, so that a busy machine slows both; CPU time is counted. Printed are the
median and the quartiles of the per-round ratios at 128x160, width 32 and batch 8, with one layer (the default) and with
the four stages of the decoder, and the most memory that the process held when it had fitted on that many images, of
which a loader makes eight at a time. Weights are random: speed and size do not depend on them.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import splitpoint as sp
from networks import UNet

STAGES = ["merge.0", "merge.1", "merge.2", "merge.3"]
CASES = {"one layer": None, "four stages": STAGES}
SIZE, BATCH = (128, 160), 8


class Frames:
    """Images and targets of noise, eight at a time, the same in every pass."""

    def __init__(self, net: nn.Module, count: int) -> None:
        self.net, self.count = net, count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for start in range(0, self.count, BATCH):
            x = torch.randn(min(BATCH, self.count - start), 3, *SIZE, generator=generator)
            with torch.no_grad():
                y = self.net(x)
            yield x, y + torch.randn(y.shape, generator=generator)


def ratios(net: nn.Module, predictor: nn.Module, x: Tensor, rounds: int) -> tuple[Tensor, float]:
    """Per-round ratios of CPU time, and the base model's median in milliseconds."""
    found = []
    with torch.no_grad():
        net(x), predictor(x)
        for _ in range(rounds):
            began = time.process_time()
            net(x)
            between = time.process_time()
            predictor(x)
            found.append((between - began, time.process_time() - between))
    times = torch.tensor(found, dtype=torch.float64)
    return times[:, 1] / times[:, 0], 1000 * float(times[:, 0].median())


def peak() -> float:
    """Most memory that the process has held so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=795)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", sp.SplitPointWarning)  # of noise there is nothing to predict
    net, x = UNet().eval(), torch.randn(BATCH, 3, *SIZE)
    print("| features | base ms | ratio (median) | quartiles | fit, GB at most |\n|---|---|---|---|---|")
    for name, layer in CASES.items():
        method = sp.SplitPointRegressor(epochs=1, layer=layer)
        predictor = method.fit(net, Frames(net, options.images), progress=False)
        memory = peak()
        found, base = ratios(net, predictor, x, options.rounds)
        low, middle, high = found.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
        print(f"| {name} | {base:.0f} | {middle:.3f} | {low:.3f} .. {high:.3f} | {memory:.2f} |", flush=True)


if __name__ == "__main__":
    main()
