"""What copies that left rows out do for classifiers that memorised their rows, beside true calibration rows.

    SPLITPOINT_DATA=DATA python benchmarks/classes_refit.py [--problems NAME ...] [--seeds 3]

Protocol: MLPs with two hidden layers of 64 ReLU units memorise some hundred rows, by 300 epochs of Adam without any
regularisation. `train` is `SplitPointClassifier()` fitted on the network and its rows, `refit` the same with
residuals="refit", and `held out` the same as `train` with as many calibration rows as there are training rows, which
the network has not seen; the other two do without them. `scaled train` has the temperature that fits the training
rows. All are judged on the same 3,000 further rows at most. Figures are means and standard deviations over seeds:

- `ECE`, `NLL` of the probabilities, `coverage` and `size` of prediction sets at 0.9;
- `OOD`: AUROC of the support of rows out of distribution, the mean over test rows with every feature shuffled and
  normal noise of deviation 1 and 4;
- `share`: mean of `Support.share` over test rows, over the mean that it should have; 1 is right;
- `errors`: AUROC of wrong answers by the total score, and by the entropy of the probabilities alone;
- `s`: seconds for the fit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import development_text as text
import splitpoint as sp
from development_cell import file_of
from development_rows import memorised, shuffled_columns
from splitpoint.calibration import fit_temperature
from splitpoint.metrics import auroc, ece, nll

LEVEL, JUDGED, FURTHER = 0.9, 3000, 5000

Data = tuple[Tensor, Tensor]


def seeded(seed: int) -> torch.Generator:
    """A generator apart from the global state."""
    return torch.Generator().manual_seed(seed)


def blobs(seed: int, rows: int, *, apart: float, width: int, classes: int) -> Data:
    """Normal rows of deviation 1.5 around class centres of deviation `apart`."""
    generator, centres = seeded(seed), apart * torch.randn(classes, width, generator=seeded(99))
    label = torch.randint(classes, (rows,), generator=generator)
    return centres[label] + 1.5 * torch.randn(rows, width, generator=generator), label


def curved(seed: int, rows: int) -> Data:
    """Labels drawn from probabilities that are curved in five of ten features."""
    generator = seeded(seed)
    x = torch.randn(rows, 10, generator=generator)
    scores = torch.stack([x[:, 0] * x[:, 1], 2 * x[:, 2].sin(), x[:, 3] - x[:, 4].abs() + 0.5], 1)
    return x, torch.multinomial((2 * scores).softmax(1), 1, generator=generator)[:, 0]


def digits(_seed: int, _rows: int) -> Data:
    """Handwritten digits, six views side by side."""
    with np.load(file_of("multiview/handwritten.npz"), allow_pickle=False) as file:
        x = torch.from_numpy(np.concatenate([file[f"view{view}"] for view in range(6)], 1)).float()
        return x, torch.from_numpy(file["y"].astype(np.int64))


def questions(_seed: int, _rows: int) -> Data:
    """Questions of six classes, as a sentence encoder reads them."""
    texts, label = text.questions("train")
    return text.embedded(texts), label


PROBLEMS: dict[str, tuple[Callable[[int, int], Data], int]] = {
    "blobs": (lambda seed, rows: blobs(seed, rows, apart=1.2, width=8, classes=3), 300),
    "clear blobs": (lambda seed, rows: blobs(seed, rows, apart=2.0, width=12, classes=5), 400),
    "curved": (curved, 600),
    "digits": (digits, 500),
    "trec": (questions, 900),
}
"""Rows by the seed and their number, and how many of them are memorised."""


def figures(uq: sp.ClassificationPredictor, data: Data, seed: int) -> dict[str, float]:
    """How a fit turned out on test rows."""
    (x, label), generator = data, seeded(seed)
    out = uq(x)
    outside = [shuffled_columns(x, generator), *(size * torch.randn(x.shape, generator=generator) for size in (1, 4))]
    right = out.label == label
    found = {
        "ECE": ece(out, label),
        "NLL": nll(out, label),
        "OOD": float(np.mean([auroc(out.support, uq(rows).support) for rows in outside])),
        "share": float(uq.support.share(out.support.double()).mean()) / uq.method.support_mass,
        "errors": auroc(out.total[right], out.total[~right]),
        "by entropy": auroc(out.aleatoric[right], out.aleatoric[~right]),
    }
    if out.conformity is not None:
        sets = out.sets(LEVEL)
        found |= {"coverage": float(sets[torch.arange(len(label)), label].float().mean())}
        found |= {"size": float(sets.sum(1).float().mean())}
    return found


def trial(name: str, seed: int) -> dict[str, dict[str, float]]:
    """Figures of every way to fit."""
    make, count = PROBLEMS[name]
    x, label = make(seed, count + FURTHER)
    network, (fit, fit_label, rest, rest_label) = memorised(x, label, count, seed)
    test = rest[count : count + JUDGED], rest_label[count : count + JUDGED]
    held = rest[:count], rest_label[:count]
    plain, refit = sp.SplitPointClassifier(), sp.SplitPointClassifier(residuals="refit")
    found = {}
    for which, method, calibration in (("train", plain, None), ("refit", refit, None), ("held out", plain, held)):
        began = time.perf_counter()
        uq = method.fit(network, (fit, fit_label), calibration=calibration, seed=seed, progress=False)
        taken = time.perf_counter() - began
        found[which] = figures(uq, test, seed) | {"s": taken}
    with torch.no_grad():
        scaled = network(test[0]) / fit_temperature(network(fit), fit_label)
    found["scaled train"] = {
        "ECE": ece(scaled.softmax(1), test[1]),
        "NLL": float(nn.functional.cross_entropy(scaled, test[1])),
    }
    return found


NAMES = ("ECE", "NLL", "coverage", "size", "OOD", "share", "errors", "by entropy", "s")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("| problem | fit | " + " | ".join(NAMES) + " |\n" + "|---" * (len(NAMES) + 2) + "|", flush=True)
    for name in options.problems:
        trials = [trial(name, seed) for seed in range(options.seeds)]
        for which in trials[0]:
            cells = [f"{name} ({PROBLEMS[name][1]})", which]
            for figure in NAMES:
                values = [own[which][figure] for own in trials if figure in own[which]]
                cells.append(f"{np.mean(values):.3f} ± {np.std(values):.3f}" if values else "")
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
