"""What `import splitpoint` adds to `import torch`: medians over fresh processes, measured in turns.

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
    pairs = [(seconds("torch"), seconds("splitpoint")) for _ in range(parser.parse_args().rounds)]
    torch, both = (median(values) for values in zip(*pairs, strict=True))
    added = median(second - first for first, second in pairs)
    print(f"import torch {torch:.2f} s, import splitpoint {both:.2f} s (torch included): {added:.2f} s more.")


if __name__ == "__main__":
    main()
