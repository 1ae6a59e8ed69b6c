"""Calibration and detection on two published CIFAR-10 networks, beside entropy, energy and temperature scaling.

    SPLITPOINT_DATA=DATA:UNPACKED python benchmarks/cifar10_resnet.py [--networks 20 32] [--halves 5] [--cache DIR]

Needs `models/resnet{20,32}_cifar10.safetensors`, `cifar-10-batches-bin/` and `tiny_imagenet_val_32.npz` in the folders
of SPLITPOINT_DATA. Protocol: heads are fitted on the 50,000 training images; each random half of the test set
(seeds 0, 1, ...) gives 5,000 images to calibrate and 5,000 to test; OOD is Tiny ImageNet at 32 pixels; FGSM has
epsilon 0.02 in units of the normalised input, clamped to valid pixels. Means and standard errors are over the halves:
they share images and one network, so the errors do not cover another training of the network.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

import splitpoint as sp
from splitpoint.attacks import fgsm
from splitpoint.bench.networks import published
from splitpoint.classification.correction import fit_temperature
from splitpoint.consistency import entropy
from splitpoint.datasets.folders import find
from splitpoint.features import Tap
from splitpoint.layout import Layout
from splitpoint.metrics import accuracy, auroc, ece, nll

STAGES = ("body.layer1", "body.layer2", "body.layer3")
PENULTIMATE = slice(48, 112)


class Recorded(nn.Module):
    """Stands for a network whose pooled features (112) and logits (10) were recorded once, side by side."""

    def forward(self, row: Tensor) -> Tensor:
        """(N, 122) -> logits (N, 10)."""
        return row[:, 112:]


def cifar(name: str) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) uint8 and labels from one file of the official binary format."""
    rows = np.fromfile(find(f"cifar-10-batches-bin/{name}.bin"), np.uint8).reshape(-1, 3073)
    return torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(rows[:, 0].astype(np.int64))


def tiny_imagenet() -> Tensor:
    """Out-of-distribution images (10000, 3, 32, 32) uint8."""
    with np.load(find("tiny_imagenet_val_32.npz")) as file:
        images = next(file[key] for key in file.files if file[key].ndim == 4)
    return torch.from_numpy(images).movedim(3, 1).contiguous()


def recorded(net: nn.Module, images: Tensor, label: str, attack: Tensor | None = None) -> Tensor:
    """(N, 122) pooled features of the three stages and logits; of FGSM images when labels to attack are given."""
    tap = Tap(net, STAGES, None, "three stages")
    layout = Layout((False, False, False), False, 1)
    rows = []
    for start in tqdm(range(0, len(images), 250), desc=label, leave=False):
        x = images[start : start + 250].float() / 255
        if attack is not None:
            x = fgsm(net, x, attack[start : start + 250], 0.02 * net.get_buffer("normalise.std"))
        logits, features = tap(x)
        rows.append(torch.cat([layout.features(features), logits], 1))
    return torch.cat(rows)


def load_recorded(depth: int, cache: Path) -> dict[str, Tensor]:
    """Everything the comparison needs of one network, recorded on the first call."""
    file = cache / f"resnet{depth}.pt"
    if not file.exists():
        net = published(depth)
        train = [cifar(f"data_batch_{i}") for i in range(1, 6)]
        images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
        test_images, test_labels = cifar("test_batch")
        name = f"ResNet-{depth}"
        rows = {
            "train": recorded(net, images, f"{name} training images"),
            "train_labels": labels,
            "test": recorded(net, test_images, f"{name} test images"),
            "test_labels": test_labels,
            "ood": recorded(net, tiny_imagenet(), f"{name} OOD images"),
            "fgsm": recorded(net, test_images, f"{name} FGSM images", test_labels),
        }
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(rows, file)
    return torch.load(file, weights_only=True)


def penultimate(row: Tensor) -> Tensor:
    """Features that the default layer choice finds in these networks."""
    return row[:, PENULTIMATE]


def three_stages(row: Tensor) -> Tensor:
    """Pooled features of all three stages."""
    return row[:, :112]


def compare(rows: dict[str, Tensor], halves: int, paper_epochs: int) -> dict[str, list[dict[str, float]]]:
    """Figures of every method on every half."""
    methods = {
        "ours (default)": sp.SplitPointClassifier(layer=penultimate),
        "ours, layer=[three stages]": sp.SplitPointClassifier(layer=three_stages),
        f"paper preset, {paper_epochs} epochs": sp.SplitPointClassifier.paper(layer=penultimate, epochs=paper_epochs),
    }
    found: dict[str, list[dict[str, float]]] = {}
    for half in range(halves):
        order = torch.randperm(10_000, generator=torch.Generator().manual_seed(half))
        held_out, test = order[:5000], order[5000:]
        labels = rows["test_labels"][test]
        parts = (rows["test"][test], rows["ood"], rows["fgsm"][test])
        logits = [part[:, 112:] for part in parts]
        wrong = logits[0].argmax(1) != labels
        plain = {
            "entropy": [entropy(z.softmax(1)) for z in logits],
            "energy": [-z.logsumexp(1) for z in logits],
        }
        for name, scores in plain.items():
            found.setdefault(f"softmax, {name}", []).append(
                detection(*scores, wrong) | quality(logits[0].softmax(1), labels)
            )
        calibration = (rows["test"][held_out], rows["test_labels"][held_out])
        factor = fit_temperature(calibration[0][:, 112:], calibration[1])
        found.setdefault("temperature scaling", []).append(quality((factor * logits[0]).softmax(1), labels))
        for name, method in methods.items():
            uq = method.fit(
                Recorded(),
                (rows["train"], rows["train_labels"]),
                calibration=calibration,
                seed=half,
                progress=True,
            )
            clean, ood, attacked = (uq(part) for part in parts)
            figures = detection(clean.epistemic, ood.epistemic, attacked.epistemic, wrong) | quality(
                clean.probs, labels
            )
            found.setdefault(f"{name}: epistemic", []).append(figures)
            total = detection(clean.total, ood.total, attacked.total, wrong)
            found.setdefault(f"{name}: total", []).append(total)
    return found


def detection(clean: Tensor, ood: Tensor, attacked: Tensor, wrong: Tensor) -> dict[str, float]:
    """AUROCs of one score."""
    return {
        "AUROC error": auroc(clean[~wrong], clean[wrong]),
        "AUROC OOD": auroc(clean, ood),
        "AUROC FGSM": auroc(clean, attacked),
    }


def quality(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and calibration of probabilities."""
    return {"accuracy": accuracy(probs, labels), "ECE": ece(probs, labels), "NLL": nll(probs, labels)}


COLUMNS = ("accuracy", "ECE", "NLL", "AUROC error", "AUROC OOD", "AUROC FGSM")


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """Markdown: mean and standard error over the halves."""
    lines = [f"| method | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, runs in found.items():
        cells = []
        for column in COLUMNS:
            values = torch.tensor([run[column] for run in runs if column in run], dtype=torch.float64)
            error = values.std() / max(len(values), 1) ** 0.5 if len(values) > 1 else torch.tensor(float("nan"))
            cells.append(f"{values.mean():.4f} ± {error:.4f}" if len(values) else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print one table for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="+", default=[20, 32])
    parser.add_argument("--halves", type=int, default=5)
    parser.add_argument("--paper-epochs", type=int, default=60, help="of the paper preset, which asks for 300")
    parser.add_argument("--cache", type=Path, default=Path("out/cifar10_resnet"))
    options = parser.parse_args()
    for depth in options.networks:
        began = time.perf_counter()
        rows = load_recorded(depth, options.cache)
        found = compare(rows, options.halves, options.paper_epochs)
        print(
            f"\nResNet-{depth}, {options.halves} halves ({time.perf_counter() - began:.0f} s)\n\n{table(found)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
