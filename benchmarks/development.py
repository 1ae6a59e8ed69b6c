"""Cells on which the scores of classifiers are developed, so that those of the benchmark stay unseen.

    SPLITPOINT_DATA=DATA python benchmarks/development.py [--out FOLDER] [--only NAME ...]

A cell is a trained classifier as arrays: what its last linear layer reads, its logits and the labels of the rows it
was trained on and of held-out rows, and features and logits of several foreign sets. Every source becomes one file
NAME.npz with `train_features` (N, C), `train_logits` (N, K), `train_label` (N,), the same for `test`, and
`foreign_SET_features`, `foreign_SET_logits`. A file that is there is not built again; to build it anew, remove it.
A source whose package or data are missing is skipped. The functions say what each source holds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import development_images as images
import development_rows as rows
import development_text as text
from development_cell import Cell, MissingError

Source = Callable[[], Cell]

SOURCES: dict[str, Source] = {
    "overfit_mlp": rows.overfit_mlp,
    "fsdd": rows.fsdd,
    "trec": text.trec,
    "overfit_trec": text.overfit_trec,
    "intents": text.intents,
    "trec50": text.trec50,
    "trec50_open": text.trec50_open,
    "agnews": text.agnews,
    "lenet_mnist": images.lenet_mnist,
    "lenet_fashion": images.lenet_fashion,
    "resnet20": images.resnet20,
    "resnet32": images.resnet32,
    "efficientnet": images.efficientnet,
}
"""Sources by name, the cheapest first."""


def described(name: str, cell: Cell) -> str:
    """A line of the table."""
    counts = ", ".join(f"{which} {len(part.features)}" for which, part in cell.foreign.items())
    fields = [
        name,
        len(cell.train.features),
        len(cell.test.features),
        cell.train.features.shape[1],
        cell.train.logits.shape[1],
        f"{cell.train.accuracy:.3f}",
        f"{cell.test.accuracy:.3f}",
        counts,
    ]
    return "| " + " | ".join(map(str, fields)) + " |"


def build(folder: Path, names: Iterable[str], sources: Mapping[str, Source]) -> None:
    """Build the sources that the folder does not have yet, and print a line for each."""
    header = ["source", "train", "test", "C", "K", "train accuracy", "test accuracy", "foreign rows"]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|", flush=True)
    skipped: list[str] = []
    for name in names:
        path, began = folder / f"{name}.npz", time.perf_counter()
        if path.exists():
            print(described(name, Cell.read(path)), flush=True)
            continue
        try:
            cell = sources[name]()
        except MissingError as error:
            skipped.append(f"{name} is skipped. {error}")
            continue
        cell.write(path)
        print(f"{described(name, cell)} {time.perf_counter() - began:.0f} s", flush=True)
    print("\n".join(["", *skipped]), flush=True)


def main() -> None:
    """Build what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/development"))
    parser.add_argument("--only", nargs="+", choices=list(SOURCES), default=list(SOURCES), metavar="NAME")
    options = parser.parse_args()
    build(options.out, options.only, SOURCES)


if __name__ == "__main__":
    main()
