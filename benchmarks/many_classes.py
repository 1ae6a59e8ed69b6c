"""Heads for a thousand classes out of a cache on disk: peak memory and CPU time, on synthetic features.

    python benchmarks/many_classes.py [--rows 100000] [--features 2048] [--classes 1000] [--recipe default] [--epochs N]

The base network is one linear layer on features of normally distributed rows around class centres; batches are drawn
when they are asked for, so that nothing but the cache holds all of them. `--recipe paper` trains the paper's heads.
Peak memory is that of the whole process, libraries included.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from splitpoint import SplitPointClassifier
from splitpoint.metrics import auroc, ece


class Clouds:
    """Batches of rows around class centres, the same in every pass.

    Args:
        centres: (K, C).
        rows: number of rows.
        seed: of the rows.
        batch_size: rows a batch.
        shift: added to every row, for rows that are out of distribution.
    """

    def __init__(self, centres: Tensor, rows: int, seed: int, batch_size: int = 1000, shift: float = 0.0) -> None:
        self.centres, self.rows, self.seed, self.batch_size, self.shift = centres, rows, seed, batch_size, shift

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        for start in range(0, self.rows, self.batch_size):
            count = min(self.batch_size, self.rows - start)
            label = torch.randint(len(self.centres), (count,), generator=generator)
            noise = torch.randn(count, self.centres.shape[1], generator=generator)
            yield self.centres[label] + noise + self.shift, label


def main() -> None:
    """Fit, predict, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--recipe", choices=("default", "paper"), default="default")
    parser.add_argument("--epochs", type=int, help="of the heads (default: those of the recipe)")
    options = parser.parse_args()
    torch.manual_seed(0)
    centres = 3 * torch.randn(options.classes, options.features) / options.features**0.5
    network = nn.Sequential(nn.Linear(options.features, options.classes)).eval()
    with torch.no_grad():
        network[0].weight.copy_(centres)
        network[0].bias.copy_(-centres.square().sum(1) / 2)
    changes = {} if options.epochs is None else {"epochs": options.epochs}
    recipe = SplitPointClassifier.paper if options.recipe == "paper" else SplitPointClassifier
    held_out, test = Clouds(centres, options.rows // 10, 1), Clouds(centres, 5000, 2)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        fitted = recipe(cache=folder, **changes).fit(
            network, Clouds(centres, options.rows, 0), calibration=held_out, progress=True
        )
        seconds = time.process_time() - began
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    known, ood = fitted.predict(test), fitted.predict(Clouds(centres, 5000, 3, shift=0.5))
    label = torch.cat([label for _, label in test])
    print(f"{options.rows:,} rows, {options.features} features, {options.classes} classes, recipe {options.recipe}")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")
    print(f"cache: {stored / 2**30:.2f} GB; fitting: {seconds:.0f} CPU seconds")
    print(f"accuracy {(known.label == label).double().mean():.4f}, ECE {ece(known, label):.4f}, ", end="")
    print(f"AUROC of shifted rows {auroc(known.epistemic, ood.epistemic):.4f}")


if __name__ == "__main__":
    main()
