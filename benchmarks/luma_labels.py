"""What becomes of labels that are switched in every modality by itself, as LUMA's compiler does it.

Its label noise switches a share of the labels of images, of sounds and of texts, each to the nearest class in features
of its own, and then puts the three tables side by side, sorted by the switched label and shuffled within it. Classes
are no longer of one size then, so that even the switched labels part company. Here the same is done to the learning
rows of `three_modal`, with simple features; beside it stands `modal_noise.label`, which switches the label of a row.

    SPLITPOINT_DATA=DATA python benchmarks/luma_labels.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from splitpoint.datasets import modal
from splitpoint.datasets.modal_noise import label

SEEDS, SHARE = 5, 0.3


def as_compiled(rows: modal.ModalRows, seed: int) -> list[tuple[Tensor, Tensor]]:
    """For each modality the switched and the true labels of its column of the compiled table."""
    columns = []
    for number, (name, given) in enumerate(rows.inputs.items()):
        alone = modal.ModalRows({name: given}, rows.labels, rows.groups)
        switched = label(alone, SHARE, seed=10 * seed + number).labels
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(10 * seed + number))
        order = order[switched[order].argsort(stable=True)]
        columns.append((switched[order], rows.labels[order]))
    return columns


def agreeing(columns: list[Tensor]) -> float:
    """Share of the rows in which all columns are the same."""
    return float(torch.stack([column == columns[0] for column in columns]).all(0).double().mean())


def main() -> None:
    """Print the shares of rows that agree, one line a law, mean and range over the seeds."""
    parts = modal.splits("three_modal")
    rows = modal.joined([parts.train, parts.validation, parts.calibration])
    found: dict[str, list[float]] = {"LUMA, switched labels": [], "LUMA, true classes": [], "ours, label kept": []}
    for seed in range(SEEDS):
        columns = as_compiled(rows, seed)
        found["LUMA, switched labels"].append(agreeing([switched for switched, _ in columns]))
        found["LUMA, true classes"].append(agreeing([true for _, true in columns]))
        found["ours, label kept"].append(agreeing([label(rows, SHARE, seed=seed).labels, rows.labels]))
    print("| law | rows that agree | least | largest |\n|---|---|---|---|")
    for law, shares in found.items():
        print(f"| {law} | {sum(shares) / SEEDS:.3f} | {min(shares):.3f} | {max(shares):.3f} |")


if __name__ == "__main__":
    main()
