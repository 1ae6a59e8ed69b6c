"""How the default regression recipe was chosen: recipes compared on validation splits of UCI training sets.

    SPLITPOINT_DATA=DATA python benchmarks/regression_recipe.py [--sets boston yacht] [--trials 10]

Protocol: of each customary training split, a random ninth is held back for validation (test rows are never read);
inputs and target are standardised by the rest; the base network has one hidden layer of 50 ReLU units and is trained
with Adam at 1e-4, batches of 64, 400 epochs. All recipes share base networks and rows. Figures are means and
standard errors over trials (splits). `floor` is the value of PIECE that a perfect interval would have by sampling.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

import splitpoint as sp
from splitpoint.datasets.folders import find
from splitpoint.heads import StackedMlp
from splitpoint.metrics import picp, piece_minus, piece_plus, spearman, winkler

SETS = ("boston", "concrete", "energy", "wine", "yacht", "kin8nm", "power")
FEW = {"kin8nm": 3, "power": 3}
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
    with np.load(find(f"uci/{name}.npz")) as file:
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


def figures(predictor: sp.RegressionPredictor, x: Tensor, y: Tensor) -> dict[str, float]:
    """Everything that is compared."""
    out = predictor(x)
    error = (out.mean - y).abs()
    return {
        "Winkler": winkler(out, y),
        "coverage": picp(out, y),
        "PIECE+": piece_plus(out, y),
        "PIECE-": piece_minus(out, y),
        "Spearman total": spearman(out.total, error),
        "Spearman SDS": spearman(out.epistemic, error),
    }


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), help="names, as printed")
    options = parser.parse_args()
    header = ["set", "recipe", "Winkler", "coverage", "PIECE+", "PIECE-", "Spearman total", "Spearman SDS", "CPU s"]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|", flush=True)
    for name in options.sets:
        trials = min(options.trials, FEW.get(name, options.trials))
        parts = [rows_of(name, trial) for trial in range(trials)]
        x, y = [p[0] for p in parts], [p[1] for p in parts]
        nets = base_networks(x, y, name)
        bound = floor(len(parts[0][2]))
        print(f"| {name} | sampling floor, {trials} trials | | | {bound:.3f} | {bound:.3f} | | | |", flush=True)
        for recipe in options.recipes:
            began = time.process_time()
            data = list(zip(x, y, strict=True))
            predictors = RECIPES[recipe].fit_many(nets, data, seeds=range(trials), progress=True)
            spent = time.process_time() - began
            found = [figures(p, part[2], part[3]) for p, part in zip(predictors, parts, strict=True)]
            cells = []
            for key in found[0]:
                values = torch.tensor([run[key] for run in found])
                cells.append(f"{values.mean():.3f} ± {values.std() / trials**0.5:.3f}")
            print(f"| {name} | {recipe} | {' | '.join(cells)} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
