"""Memory and time of `splitpoint predict` on many rows: peak resident memory of a process of its own.

python benchmarks/predict_rows.py [--rows 5000000] [--features 13] [--out scores.parquet]

A network 13-50-1 and a predictor with two levels and a threshold are made in a temporary folder; the rows are normal
numbers in a parquet file with groups of 100,000 rows, which is written in pieces. Needs the extra `tables`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import splitpoint as sp

GROUP = 100_000
MODULE = """from torch import nn

def build():
    return nn.Sequential(nn.Linear({0}, 50), nn.ReLU(), nn.Linear(50, 1))
"""


def write_rows(path: Path, rows: int, features: int) -> None:
    """A parquet file of normal numbers, a group at a time."""
    random = np.random.default_rng(0)
    names = [f"f{number}" for number in range(features)]
    with pq.ParquetWriter(path, pa.schema([(name, pa.float64()) for name in names])) as file:
        for start in range(0, rows, GROUP):
            values = random.standard_normal((features, min(GROUP, rows - start)))
            file.write_table(pa.table(dict(zip(names, values, strict=True))))


def prepare(folder: Path, features: int) -> None:
    """A trained network, its weights, and a predictor that knows its features by name."""
    (folder / "network.py").write_text(MODULE.format(features))
    torch.manual_seed(0)
    x = torch.randn(2000, features)
    y = x[:, :1].sin() + 0.1 * torch.randn(2000, 1)
    net = nn.Sequential(nn.Linear(features, 50), nn.ReLU(), nn.Linear(50, 1))
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimiser.step()
    torch.save(net.state_dict(), folder / "network.pt")
    uq = sp.SplitPointRegressor((0.8, 0.95)).fit(net, (x, y), progress=False)
    uq.set_threshold(torch.randn(1000, features)).save(folder / "uq.safetensors")


def measure(folder: Path, data: str, out: str, features: int) -> tuple[float, float]:
    """Seconds and peak resident memory in MB of one prediction."""
    names = ",".join(f"f{number}" for number in range(features))
    command = [sys.executable, "-m", "splitpoint.cli", "predict", "uq.safetensors", "--model", "network:build"]
    command += ["--weights", "network.pt", "--data", data, "--features", names, "--out", out, "--quiet"]
    began = time.perf_counter()
    child = subprocess.Popen(command, cwd=folder)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"splitpoint predict ended with {status}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def main() -> None:
    """Print one line for a few rows, which is what the libraries take, and one for all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--features", type=int, default=13)
    parser.add_argument("--out", default="scores.parquet", help="its ending says which kind of file is written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, options.features)
        for rows in (min(10_000, options.rows), options.rows):
            data = f"rows_{rows}.parquet"
            write_rows(folder / data, rows, options.features)
            seconds, peak = measure(folder, data, options.out, options.features)
            size = (folder / data).stat().st_size / 1e6
            print(f"{rows:,} rows ({size:,.0f} MB of parquet): peak {peak:,.0f} MB, {seconds:,.0f} s", flush=True)


if __name__ == "__main__":
    main()
