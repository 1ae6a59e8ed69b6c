"""Coverage of the default regression recipe on the cubic task, and AUROC of its epistemic score out of distribution.

    python benchmarks/cubic_coverage.py [--seeds 10]

Protocol: for each noise law and seed, 2,000 training points in [-4, 4], a ReLU network of two hidden layers of 64
units trained for 1,500 full-batch Adam steps, heads fitted without calibration data; coverage of the 95% interval, in
all and on each side, on 4,000 fresh points in [-4, 4]; AUROC of the epistemic score for |x| > 4 on 4,000 points in
[-6, 6]. Means and standard errors over seeds.
"""

from __future__ import annotations

import argparse

import torch

import splitpoint as sp
from splitpoint.datasets import NOISE_LAWS, cubic
from splitpoint.demo.tasks import train_cubic
from splitpoint.metrics import auroc, picp, picp_down, picp_up, winkler

METHODS = {"default": sp.SplitPointRegressor(), "leverage=False": sp.SplitPointRegressor(leverage=False)}


def figures(uq: sp.RegressionPredictor, noise: str, seed: int) -> list[float]:
    """Coverage, on each side too, Winkler score and AUROC of one predictor on fresh points."""
    generator = torch.Generator().manual_seed(1000 + seed)
    test, wide = cubic(4000, noise, generator=generator), cubic(4000, noise, 6.0, generator=generator)
    out, score = uq(test.x), uq(wide.x).epistemic.flatten()
    ood = wide.x.abs().flatten() > 4
    shares = [metric(out, test.y) for metric in (picp, picp_up, picp_down, winkler)]
    return [*shares, auroc(score[~ood], score[ood])]


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    header = ("noise", "heads", "coverage", "above", "below", "Winkler", "AUROC abs(x) > 4")
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
    for noise in NOISE_LAWS:
        generators = [torch.Generator().manual_seed(seed) for seed in range(options.seeds)]
        train = [cubic(2000, noise, generator=g) for g in generators]
        nets = [train_cubic(d.x, d.y, seed, progress=True) for seed, d in enumerate(train)]
        data = [(d.x, d.y) for d in train]
        for name, method in METHODS.items():
            predictors = method.fit_many(nets, data)
            values = torch.tensor([figures(uq, noise, seed) for seed, uq in enumerate(predictors)])
            errors = values.std(0) / len(values) ** 0.5
            cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in zip(values.mean(0), errors, strict=True)]
            print(f"| {noise} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
