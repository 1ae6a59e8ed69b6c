"""Which modality contradicts the others: `Agreement` beside RCML's own conflict and the entropy of the fused softmax.

    python benchmarks/agreement.py [--sets pie handwritten three_modal] [--seeds 5] [--methods agreement rcml]

Rows are those of `splitpoint.datasets.modal`: a fifth for tests, of the rest a fifth for calibration where the set does
not say which. Every modality of the test rows in turn is exchanged for that of a row of another class; `AUROC` is that
of these rows against the clean ones and `named` the share of them in which the spoilt modality has the largest blame,
both averaged over modalities; `least` is the smallest AUROC and the smallest share of a modality.

- `agreement`: a network with a branch for each modality, the mean of whose logits learns by cross-entropy from the rows
  that are not for calibration; features are what the last layer of each branch reads. Views have one hidden layer of
  128 units and 100 epochs of Adam at 3e-3; images and sounds two strided convolutions and one hidden layer, hashed
  words one hidden layer, and 15 epochs at 1e-3.
- `entropy`: of the softmax of the same network.
- `rcml`: `Rcml` on all rows that are not for tests, with linear branches for views as its authors have (500 epochs of
  Adam at 3e-3, batches of 200, weight decay 1e-5), and the branches and epochs above for `three_modal`. `hidden` adds
  the hidden layer of 128 units to the branches of views.
- `svm`: accuracy of a support vector machine with a Gaussian kernel (C = 10, as scikit-learn scales it) on the same
  rows of views side by side, each of which counts the same. It shows what is within reach.

Nothing is chosen by test rows. Means and standard errors over seeds, which decide splits, weights and exchanged rows.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev

import numpy as np
import torch
from sklearn.svm import SVC
from torch import Tensor, nn

import splitpoint as sp
from splitpoint.baselines import Rcml, train_network
from splitpoint.consistency import entropy
from splitpoint.datasets import modal, modal_noise
from splitpoint.datasets.modal_rows import ModalRows, joined
from splitpoint.metrics import auroc

SETS = ("pie", "handwritten", "three_modal")
METHODS = ("agreement", "rcml", "hidden", "svm")
HIDDEN, WORDS = 128, 2048

PUBLISHED = {"pie": 94.71, "handwritten": 99.40}
"""Accuracy of RCML (Xu et al., AAAI 2024, Table 2)."""

Result = tuple[str, str, dict[str, float]]


class Branch(nn.Module):
    """Features of one modality and logits that are linear in them."""

    def __init__(self, features: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, classes)

    def forward(self, given: Tensor) -> Tensor:
        """(N, ...) -> (N, K)."""
        logits: Tensor = self.head(self.features(given))
        return logits


class Fusion(nn.Module):
    """The mean of the logits of all branches."""

    def __init__(self, branches: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(branches)

    def forward(self, *inputs: Tensor) -> Tensor:
        """One input for each branch -> (N, K)."""
        return torch.stack([branch(x) for branch, x in zip(self.branches.values(), inputs, strict=True)]).mean(0)


def network(shapes: Mapping[str, torch.Size], classes: int, hidden: bool) -> Fusion:
    """The untrained network; vectors go straight to a linear layer where `hidden` is False."""

    def branch(shape: torch.Size) -> nn.Module:
        if len(shape) == 1 and not hidden:
            return nn.Linear(shape[0], classes)
        if len(shape) == 1:
            return Branch(nn.Sequential(nn.Linear(shape[0], HIDDEN), nn.ReLU()), HIDDEN, classes)
        convolutions = nn.Sequential(
            nn.Conv2d(shape[0], 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        flat = convolutions(torch.zeros(1, *shape)).shape[1]
        return Branch(nn.Sequential(*convolutions, nn.Linear(flat, HIDDEN), nn.ReLU()), HIDDEN, classes)

    return Fusion({name: branch(shape) for name, shape in shapes.items()})


def tensors(rows: ModalRows) -> list[Tensor]:
    """Inputs of the branches; texts are hashed to the words and pairs of words that they hold."""
    return [given if isinstance(given, Tensor) else hashed(given) for given in rows.inputs.values()]


def hashed(texts: Sequence[str]) -> Tensor:
    """(N, 2048), 1 where a text holds a word or a pair of words of that hash."""
    found = torch.zeros(len(texts), WORDS)
    for row, text in enumerate(texts):
        words = text.lower().split()
        for word in (*words, *map(" ".join, pairwise(words))):
            found[row, zlib.crc32(word.encode()) % WORDS] = 1
    return found


def data(rows: ModalRows) -> tuple[Tensor, ...]:
    """Inputs and labels as `fit` takes them."""
    return (*tensors(rows), rows.labels)


def judged(
    clean: Mapping[str, Tensor], spoilt: Sequence[Mapping[str, Tensor]], name: str, right: float, seconds: float
) -> dict[str, float]:
    """Figures of a score, and of its blame where it names modalities."""
    found = [auroc(clean[name], own[name]) for own in spoilt]
    figures = {"accuracy": 100 * right, "AUROC": fmean(found), "least AUROC": min(found), "seconds": seconds}
    if "blame" in clean and name != "entropy":
        named = [float((own["blame"].argmax(1) == place).double().mean()) for place, own in enumerate(spoilt)]
        figures |= {"named": fmean(named), "least named": min(named)}
    return figures


def results(name: str, seed: int, methods: Sequence[str]) -> Iterator[Result]:
    """Figures of all methods with one seed."""
    parts = modal.splits(name, seed)
    views = name != "three_modal"
    learned = joined([parts.train, parts.validation])
    test, classes = parts.test, len(parts.classes)
    changed = [modal_noise.conflict(test, modality, seed=seed) for modality in test.modalities]
    shapes = {m: own.shape[1:] for m, own in zip(test.modalities, tensors(test), strict=True)}
    training = {"epochs": 100, "learning_rate": 3e-3} if views else {"epochs": 15, "learning_rate": 1e-3}
    if "agreement" in methods:
        build = partial(network, shapes, classes, hidden=True)
        base = train_network(build, data(learned), batch_size=128, seed=seed, progress=False, **training)
        began = time.process_time()
        places = {modality: f"branches.{modality}.features" for modality in test.modalities}
        uq = sp.Agreement(branches=places).fit(
            base, data(learned), calibration=data(parts.calibration), seed=seed, progress=False
        )
        seconds = time.process_time() - began

        def said(rows: ModalRows) -> dict[str, Tensor]:
            with torch.no_grad():
                probs = base(*tensors(rows)).softmax(1)
            out = uq(*tensors(rows))
            return {
                "conflict": out.conflict,
                "blame": out.blame,
                "entropy": entropy(probs, 1),
                "label": probs.argmax(1),
            }

        clean, spoilt = said(test), [said(rows) for rows in changed]
        right = float((clean["label"] == test.labels).double().mean())
        yield name, "agreement", judged(clean, spoilt, "conflict", right, seconds)
        yield name, "entropy", judged(clean, spoilt, "entropy", right, 0.0)
    every = joined([learned, parts.calibration])
    if "svm" in methods and views:
        yield name, "svm", {"accuracy": 100 * kernel_accuracy(every, test)}
    for method in ("rcml", "hidden"):
        if method not in methods or (method == "hidden" and not views):
            continue
        budget = {"epochs": 500, "batch_size": 200, "weight_decay": 1e-5} if views else {"batch_size": 128}
        build = partial(network, shapes, classes, hidden=method == "hidden" or not views)
        began = time.process_time()
        rival = Rcml(**{**training, **budget}).fit(build, data(every), seed=seed, progress=False)
        seconds = time.process_time() - began
        answers = [vars(rival(*tensors(rows))) for rows in (test, *changed)]
        right = float((answers[0]["label"] == test.labels).double().mean())
        yield name, method, judged(answers[0], answers[1:], "conflict", right, seconds)


def kernel_accuracy(train: ModalRows, test: ModalRows) -> float:
    """Share of test rows that a support vector machine on all views gets right."""
    sides = [np.concatenate([x.numpy() / x.shape[1] ** 0.5 for x in tensors(rows)], 1) for rows in (train, test)]
    machine = SVC(C=10.0).fit(sides[0], train.labels.numpy())
    return float((machine.predict(sides[1]) == test.labels.numpy()).mean())


def main() -> None:
    """Print a line for every fit, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    for name in options.sets:
        for seed in range(options.seeds):
            for own, method, figures in results(name, seed, options.methods):
                rows.setdefault((own, method), []).append(figures)
                print(own, method, seed, {key: round(value, 3) for key, value in figures.items()}, flush=True)
    print("\n| set | method | accuracy | published | AUROC | least | named | least | CPU seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (own, method), found in rows.items():
        print(f"| {own} | {method} | {' | '.join(cells(own, method, found))} |")


def cells(name: str, method: str, found: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Mean and standard error of every column."""
    for key in ("accuracy", "published", "AUROC", "least AUROC", "named", "least named", "seconds"):
        values = [own[key] for own in found if key in own]
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        digits = 1 if key == "seconds" else 2 if key == "accuracy" else 3
        if key == "published":
            yield f"{PUBLISHED[name]:.2f}" if name in PUBLISHED and method in ("rcml", "hidden") else ""
        else:
            yield f"{fmean(values):.{digits}f} +- {error:.{digits}f}" if values else ""


if __name__ == "__main__":
    main()
