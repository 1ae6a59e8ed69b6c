"""What smaller heads cost in quality: widths and sketches of the leverage on validation splits of UCI training sets.

    SPLITPOINT_DATA=DATA python benchmarks/head_width.py [--sets boston yacht] [--trials 10]

Rows and base networks as in regression_recipe.py: test rows are never read. `width` is the most units of a hidden
layer, `columns` how many columns the matrices of both leverages are mixed into at random (see `fit_leverage`), "all"
for no sketch. The first line of a set has the values of the default, means over trials; the others have the mean
difference from it on the same networks and rows with its standard error. `products` are the multiplications of the
heads for one row over those of the base network, `AUROC` is that of `support` between validation rows and the same
rows with every column shuffled by itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import splitpoint as sp
from regression_recipe import FEW, base_networks, rows_of
from splitpoint.heads import sketch
from splitpoint.metrics import auroc, picp, spearman, winkler
from splitpoint.regression import method as regression

SETS = ("yacht", "boston", "energy", "concrete", "wine", "kin8nm")
SIZES: tuple[tuple[int, int | None], ...] = ((64, None), (32, None), (16, None), (8, None), (64, 16), (16, 16), (8, 8))
"""Width of the heads, and columns of the leverages."""


class Small(sp.SplitPointRegressor):
    """The default recipe with a sketch for a leverage, which it else is for several maps only."""

    def _prepared(self, table: Any, residual: Any = None, several: bool = False, parts: Sequence[int] = ()) -> Any:
        return super()._prepared(table, residual, True, parts)._replace(several=several)


def fitted(nets: list[nn.Module], data: list[tuple[Tensor, Tensor]], width: int, columns: int | None) -> list[Any]:
    """Predictors of some sizes."""
    settings: dict[str, Any] = {"width": width, "residuals": "loo", "interval": "split"}
    if columns is None:
        return sp.SplitPointRegressor(**settings).fit_many(nets, data, seeds=range(len(nets)), progress=False)
    with patch.object(regression, "SKETCHED", columns):
        predictors = Small(**settings).fit_many(nets, data, seeds=range(len(nets)), progress=False)
    for predictor in predictors:
        whiten = predictor.joint.whiten
        predictor.joint.whiten = whiten @ sketch(len(whiten), columns)
    return predictors


def products(predictor: Any, base: nn.Module) -> float:
    """Multiplications of the heads for one row over those of the base network."""
    matrices = [predictor.joint.whiten, predictor.heads.whiten, *predictor.heads.trunks.parameters()]
    return sum(own.numel() for own in matrices) / sum(own.numel() for own in base.parameters())


def figures(predictor: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Everything that is compared, of one trial."""
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.stack([column[torch.randperm(len(x), generator=generator)] for column in x.T], 1)
    out, error = predictor(x), None
    error = (out.mean - y).abs()
    found = [winkler(out, y), picp(out, y), spearman(out.total, error), spearman(out.epistemic, error)]
    return torch.tensor([*found, auroc(out.support, predictor(shuffled).support)], dtype=torch.float64)


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--trials", type=int, default=10)
    options = parser.parse_args()
    header = [
        "set",
        "width",
        "columns",
        "products",
        "Winkler",
        "coverage",
        "Spearman total",
        "epistemic",
        "AUROC",
        "fit, s",
    ]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|", flush=True)
    for name in options.sets:
        parts = [rows_of(name, trial) for trial in range(min(options.trials, FEW.get(name, options.trials)))]
        nets = base_networks([part[0] for part in parts], [part[1] for part in parts], name)
        usual = None
        for width, columns in SIZES:
            began = time.process_time()
            predictors = fitted(nets, [part[:2] for part in parts], width, columns)
            spent = time.process_time() - began
            found = torch.stack([figures(p, *part[2:]) for p, part in zip(predictors, parts, strict=True)])
            shown = [f"{value:.4f}" for value in found.mean(0).tolist()]
            if usual is None:
                usual = found
            else:
                moved = found - usual
                error = moved.std(0) / len(moved) ** 0.5
                shown = [f"{a:+.4f} ± {b:.4f}" for a, b in zip(moved.mean(0).tolist(), error.tolist(), strict=True)]
            size = products(predictors[0], nets[0])
            print(
                f"| {name} | {width} | {columns or 'all'} | {size:.1f} | {' | '.join(shown)} | {spent:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
