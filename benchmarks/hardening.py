"""What is promised under concurrency, damage, hostile input and extreme numbers, and on how many cases it held.

    python benchmarks/hardening.py [--quick] [--only PART ...]

Every part is a module `hardening_PART.py` with `figures(quick)`. A promise that did not hold on every case is marked,
and the exit code is then 1. `--quick` tries a tenth of the cases.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence

from hardening_figures import Figure

PARTS = ("threads", "files", "cache", "numbers", "inputs")


def table(found: Sequence[Figure]) -> str:
    """One line for each promise: what it is, on how many of the cases it held, and the worst case."""
    rows = [("promise", "holds", "of", "worst")]
    for own in found:
        mark = "" if own.holds == own.of else "  <- FAILS"
        rows.append((own.promise, f"{own.holds:,}", f"{own.of:,}", own.worst + mark))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{a:<{widths[0]}} | {b:>{widths[1]}} | {c:>{widths[2]}} | {d}" for a, b, c, d in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def main() -> int:
    """Run the parts one after the other, and print one table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args()
    found: list[Figure] = []
    for part in options.only:
        began = time.monotonic()
        figures: Callable[[bool], list[Figure]] = importlib.import_module(f"hardening_{part}").figures
        try:
            found += figures(options.quick)
        except Exception as error:  # of one part, which is then one promise that did not hold
            found.append(Figure(f"{part}: measured to the end", 0, 1, f"{type(error).__name__}: {error}"))
        print(f"{part}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(found))
    return int(any(own.holds != own.of for own in found))


if __name__ == "__main__":
    sys.exit(main())
