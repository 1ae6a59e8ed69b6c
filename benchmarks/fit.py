"""What fitting costs: recorded features against re-running the model, a stack against single fits, memory from disk.

    python benchmarks/fit.py [--only cached stack memory checks]

All ratios are of CPU time in one run. The memory figure is the peak of a process of its own that fits on a directory
cache; it is read from the operating system, and `import torch` alone is part of it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import splitpoint as sp
from networks import mlp
from splitpoint import disk_table
from splitpoint.bench.architectures import resnet18
from splitpoint.datasets import cubic
from splitpoint.disk_table import DiskTable
from splitpoint.tasks import Rows

ROWS, FEATURES = 2_000_000, 128


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    return time.process_time()


def cached() -> None:
    """Heads fitted on features recorded once, against an estimate of running the base model in every epoch."""
    torch.manual_seed(0)
    net, images, labels = resnet18(100, (3, 64, 64)).eval(), torch.randn(128, 3, 64, 64), torch.randint(100, (128,))
    method = sp.SplitPointClassifier(epochs=20, patience=None)
    began = cpu_seconds()
    with torch.no_grad():
        for part in images.split(32):
            net(part)
    one_pass = cpu_seconds() - began
    began = cpu_seconds()
    method.fit(net, (images, labels), progress=False)
    spent = cpu_seconds() - began
    rerun = spent + 19 * one_pass
    print(
        f"ResNet-18-size network, 128 images of 64 px, 20 epochs: one pass of the base model {one_pass:.2f} CPU s, "
        f"fit on recorded features {spent:.2f}, the same with a pass in every epoch {rerun:.2f}: "
        f"ratio {rerun / spent:.1f}, growing with epochs and model size."
    )


def stack() -> None:
    """Twenty models of one shape, fitted as one stack and one after the other."""
    torch.manual_seed(0)
    nets: list[nn.Module] = [mlp(1, 50).eval() for _ in range(20)]
    data = [cubic(460, generator=torch.Generator().manual_seed(seed)) for seed in range(20)]
    pairs = [(part.x, part.y / 30) for part in data]
    for name, method in (("default", sp.SplitPointRegressor()), ("paper", sp.SplitPointRegressor.paper(epochs=200))):
        began = cpu_seconds()
        together = method.fit_many(nets, pairs, seeds=range(20), progress=False)
        one_stack = cpu_seconds() - began
        began = cpu_seconds()
        alone = [method.fit(net, d, seed=s, progress=False) for s, (net, d) in enumerate(zip(nets, pairs, strict=True))]
        singles = cpu_seconds() - began
        x = pairs[0][0]
        worst = max(
            float(((a(x).uppers - b(x).uppers) / a(x).aleatoric.unsqueeze(-1)).abs().max())
            for a, b in zip(alone, together, strict=True)
        )
        print(
            f"{name} recipe, 20 models x 460 rows: one stack {one_stack:.1f} CPU s, 20 single fits {singles:.1f}: "
            f"ratio {singles / one_stack:.1f}; largest difference of a bound {worst:.1e} of the interval's width."
        )


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Two million rows, made on the fly."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(ROWS // 10_000):
        x = torch.randn(10_000, FEATURES, generator=generator)
        yield x, x[:, :1] + torch.randn(10_000, 1, generator=generator) * x[:, 1:2].abs()


def fit_from_disk() -> None:
    """Fit on a directory cache and print the peak of resident memory."""
    with tempfile.TemporaryDirectory() as folder:
        net = nn.Linear(FEATURES, 1)
        began = time.perf_counter()
        sp.SplitPointRegressor(cache=folder).fit(net, batches(), progress=False)
        spent = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{ROWS:,} rows x {FEATURES} features from a directory cache: peak {peak:.2f} GB resident, {spent:.0f} s.")


def memory() -> None:
    """Run `fit_from_disk` in a process of its own."""
    subprocess.run([sys.executable, __file__, "--only", "fit_from_disk"], check=True)


def checks() -> None:
    """What the checksums of a directory cache and waits for the disk cost."""
    rows, batch = 500_000, 256
    columns: Rows = {"features": torch.randn(batch, FEATURES), "residual": torch.randn(batch, 1)}
    described = {name: (values.shape[1], "float32") for name, values in columns.items()}
    spent = {}
    for seconds in (disk_table.SYNC_SECONDS, 0.0):
        with tempfile.TemporaryDirectory() as folder:
            disk_table.SYNC_SECONDS, began = seconds, time.perf_counter()
            written = DiskTable.open(Path(folder), {})
            written.start({"columns": described})
            for number in range(rows // batch):
                written.append(columns, str(number))
            written.close()
            spent[seconds] = time.perf_counter() - began
            started = cpu_seconds()
            opened = DiskTable.open(Path(folder), {})
            verified = cpu_seconds() - started
            opened.position = len(opened.journal)
            table, started = opened.finish(), cpu_seconds()
            for part in table.slices():
                part["features"].sum()
            read = cpu_seconds() - started
    usual, every = spent.values()
    print(
        f"{rows:,} rows x {FEATURES} features: opening the cache again checks all rows in {verified:.2f} CPU s, one "
        f"pass over the features takes {read:.2f}; writing it takes {usual:.1f} s, with a wait for the disk after "
        f"every batch of {batch} {every:.1f} s."
    )


PARTS = {"cached": cached, "stack": stack, "memory": memory, "checks": checks, "fit_from_disk": fit_from_disk}


def main() -> None:
    """Print one line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=["cached", "stack", "memory", "checks"])
    torch.set_num_threads(1)
    for name in parser.parse_args().only:
        PARTS[name]()


if __name__ == "__main__":
    main()
