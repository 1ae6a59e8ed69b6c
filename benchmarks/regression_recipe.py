"""How the default regression recipe was chosen: recipes compared on validation splits of UCI training sets.

    SPLITPOINT_DATA=DATA python benchmarks/regression_recipe.py [--sets boston yacht] [--trials 10]

Protocol: of each customary training split, a random ninth is held back for validation (test rows are never read);
inputs and target are standardised by the rest; the base network has one hidden layer of 50 ReLU units and is trained
with Adam at 1e-4, batches of 64, 400 epochs. All recipes share base networks and rows. Figures are means and
standard errors over trials (splits). Recipes that differ only in the calibration of the interval share their heads.
`floor` is the value of PIECE that a perfect interval would have by sampling.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

import splitpoint as sp
from splitpoint.datasets.entry import find
from splitpoint.heads import StackedMlp
from splitpoint.metrics import picp, piece_minus, piece_plus, spearman, winkler

SETS = ("boston", "concrete", "energy", "wine", "yacht", "kin8nm", "power", "naval", "protein")
FEW = {"kin8nm": 3, "power": 3, "naval": 3, "protein": 1}
RECIPES: dict[str, sp.SplitPointRegressor] = {
    "paper, split": sp.SplitPointRegressor.paper(),
    "paper, consistent (unbounded)": sp.SplitPointRegressor.paper(interval="consistent"),
    "paper, consistent (bounded)": sp.SplitPointRegressor.paper(interval="consistent", factor_limit=2.0),
    "default (split)": sp.SplitPointRegressor(),
    "default, consistent (bounded)": sp.SplitPointRegressor(interval="consistent"),
    "default, training residuals": sp.SplitPointRegressor(residuals="train"),
    "default, coverage loss": sp.SplitPointRegressor(quantile_loss="coverage"),
    "default, no leverage in heads": sp.SplitPointRegressor(leverage=False),
    "default, no folds": sp.SplitPointRegressor(folds=0),
}


def rows_of(name: str, trial: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardised training and validation rows of one split, float32."""
    with np.load(find(f"uci/{name}.npz"), allow_pickle=False) as file:
        if f"train_{trial}" not in file:
            raise SystemExit(
                f"Expected the customary splits in uci/{name}.npz, but it has no train_{trial}; see docs/data.md."
            )
        rows = np.random.default_rng(trial).permutation(file[f"train_{trial}"])
        x, y = file["X"].astype(np.float64), file["y"].astype(np.float64).reshape(-1, 1)
    held = len(rows) // 9
    fit, validation = rows[held:], rows[:held]
    spread = x[fit].std(0)
    x = (x - x[fit].mean(0)) / np.where(spread > 0, spread, 1)
    y = (y - y[fit].mean()) / y[fit].std()
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    return x[fit], y[fit], x[validation], y[validation]


def base_networks(x: list[Tensor], y: list[Tensor], label: str) -> list[nn.Module]:
    """One network for each trial, all trained in one batched step."""
    generators = [torch.Generator().manual_seed(trial) for trial in range(len(x))]
    stack = StackedMlp.random([x[0].shape[1], 50, 1], generators)
    optimiser = torch.optim.Adam(stack.parameters(), lr=1e-4, fused=True)
    inputs, targets = torch.stack(x), torch.stack(y)
    for _ in tqdm(range(400), desc=f"{label} base networks", leave=False):
        order = torch.stack([torch.randperm(inputs.shape[1], generator=g) for g in generators])
        for rows in order.split(64, 1):
            index = rows.unsqueeze(2)
            batch = inputs.gather(1, index.expand(-1, -1, inputs.shape[2])), targets.gather(1, index)
            optimiser.zero_grad()
            (stack(batch[0]) - batch[1]).square().mean((1, 2)).sum().backward()
            optimiser.step()
    return [unstacked(stack, trial) for trial in range(len(x))]


def unstacked(stack: StackedMlp, member: int) -> nn.Module:
    """One member of a stack as an ordinary network."""
    layers: list[nn.Module] = []
    for weight, bias in zip(stack.weights, stack.biases, strict=True):
        linear = nn.Linear(*weight.shape[1:])
        linear.load_state_dict({"weight": weight[member].T.detach(), "bias": bias[member, 0].detach()})
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def floor(rows: int, level: float = 0.95, draws: int = 20_000) -> float:
    """Mean coverage error of a perfect one-sided interval judged on half of the rows."""
    hits = np.random.default_rng(0).binomial(rows // 2, level, draws) / (rows // 2)
    return float(np.abs(hits - level).mean())


def constant_width(net: nn.Module, x: Tensor, y: Tensor) -> Constant:
    """The simplest rival: on each side the 95% quantile of the training residuals, the same for every row."""
    with torch.no_grad():
        residual = (y - net(x)).flatten()
    down, up = (side.quantile(0.95) for side in (-residual[residual < 0], residual[residual > 0]))
    return Constant(net, down, up)


class Constant(nn.Module):
    """Intervals of constant half-widths, and no score at all."""

    def __init__(self, net: nn.Module, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.net, self.down, self.up = net, down, up

    def forward(self, x: Tensor) -> sp.RegressionPrediction:
        """A prediction whose scores are all zero."""
        with torch.no_grad():
            mean = self.net(x)
        none, wide = torch.zeros_like(mean), mean.unsqueeze(-1)
        return sp.RegressionPrediction(
            aleatoric=none,
            epistemic=none,
            total=none,
            reference=None,
            mean=mean,
            levels=(0.95,),
            lowers=wide - self.down,
            uppers=wide + self.up,
        )


def row(name: str, recipe: str, found: list[dict[str, float]], spent: float) -> str:
    """A line of the table: means and standard errors over the trials."""
    values = {key: torch.tensor([run[key] for run in found]) for key in found[0]}
    cells = [
        "" if value.isnan().all() else f"{value.mean():.3f} ± {value.std() / len(found) ** 0.5:.3f}"
        for value in values.values()
    ]
    return f"| {name} | {recipe} | {' | '.join(cells)} | {spent:.0f} |"


def figures(predictor: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Everything that is compared."""
    out = predictor(x)
    error = (out.mean - y).abs()
    return {
        "Winkler": winkler(out, y),
        "coverage": picp(out, y),
        "PIECE+": piece_plus(out, y),
        "PIECE-": piece_minus(out, y),
        "Spearman total": spearman(out.total, error),
        "Spearman width": spearman(out.upper - out.lower, error),
        "Spearman epistemic": spearman(out.epistemic, error),
    }


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), help="names, as printed")
    options = parser.parse_args()
    measured = ["Winkler", "coverage", "PIECE+", "PIECE-", "Spearman total", "Spearman width", "Spearman epistemic"]
    header = ["set", "recipe", *measured, "CPU s"]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|", flush=True)
    for name in options.sets:
        trials = min(options.trials, FEW.get(name, options.trials))
        parts = [rows_of(name, trial) for trial in range(trials)]
        x, y = [p[0] for p in parts], [p[1] for p in parts]
        nets = base_networks(x, y, name)
        bound = floor(len(parts[0][2]))
        print(f"| {name} | sampling floor, {trials} trials | | | {bound:.3f} | {bound:.3f} | | | | |", flush=True)
        constant = [figures(constant_width(net, *p[:2]), *p[2:]) for net, p in zip(nets, parts, strict=True)]
        print(row(name, "constant width", constant, 0), flush=True)
        fitted: dict[sp.SplitPointRegressor, tuple[list[sp.RegressionPredictor], float]] = {}
        for recipe in options.recipes:
            heads = replace(RECIPES[recipe], interval="split", factor_limit=None)
            if heads not in fitted:
                began = time.process_time()
                data = list(zip(x, y, strict=True))
                predictors = heads.fit_many(nets, data, seeds=range(trials), progress=True)
                fitted[heads] = predictors, time.process_time() - began
            predictors, spent = fitted[heads]
            for predictor in predictors:
                predictor.method = replace(RECIPES[recipe], interval=RECIPES[recipe].interval.replace("auto", "split"))
            found = [figures(p, part[2], part[3]) for p, part in zip(predictors, parts, strict=True)]
            print(row(name, recipe, found, spent), flush=True)


if __name__ == "__main__":
    main()
