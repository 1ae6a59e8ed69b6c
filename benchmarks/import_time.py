"""What splitpoint adds to `import torch`, and its runtime without torch: medians over fresh processes, in turns.

python benchmarks/import_time.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import median

PROGRAM = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"


def seconds(module: str) -> float:
    """Time to import `module` in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(module)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    names = ("torch", "splitpoint.regression", "splitpoint.runtime")
    rounds = [[seconds(name) for name in names] for _ in range(parser.parse_args().rounds)]
    torch, both, runtime = (median(values) for values in zip(*rounds, strict=True))
    added = median(second - first for first, second, _ in rounds)
    print(f"import torch {torch:.2f} s, a method of splitpoint {both:.2f} s (torch included): {added:.2f} s more.")
    print(f"import splitpoint.runtime {runtime:.2f} s, without torch.")


if __name__ == "__main__":
    main()
