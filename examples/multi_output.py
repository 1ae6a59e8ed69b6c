"""Several outputs with units of their own, some targets missing.

The network fits one output much better on its training rows than on new ones. Heads that see training rows only
cannot know that, so the intervals are made conformal with held-out rows.

python examples/multi_output.py

Needs scikit-learn (`pip install '.[demo]'`).
"""

import torch
from sklearn.datasets import load_linnerud, make_regression
from torch import nn

import splitpoint as sp


def main() -> None:
    """Train one network for three outputs and give each its interval and its threshold."""
    torch.manual_seed(0)
    names = load_linnerud().target_names  # weight, waist, pulse: names and scales only
    scale = torch.tensor(load_linnerud().target.std(0), dtype=torch.float32)
    x, y = make_regression(900, 8, n_informative=6, n_targets=3, random_state=0)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    y = (y / y.std(0) + 0.3 * torch.randn_like(y).exp()) * scale
    y[torch.rand_like(y) < 0.1] = torch.nan  # a tenth of the targets was never measured
    train, held_out, test = ((x[rows], y[rows]) for rows in torch.arange(900).split([500, 200, 200]))

    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    seen = ~train[1].isnan()
    for _ in range(300):
        optimiser.zero_grad()
        (((net(train[0]) - train[1]) / scale)[seen].square().mean()).backward()
        optimiser.step()

    uq = sp.SplitPointRegressor(0.9).fit(net, train, calibration=held_out, progress=False)
    uq.set_threshold(held_out[0])
    out = uq(test[0])
    print("output   inside  mean width  sqrt(threshold)")
    for column, name in enumerate(names):
        target = test[1][:, column]
        inside = (out.lower[:, column] <= target) & (target <= out.upper[:, column])
        width = (out.upper - out.lower)[:, column].mean()
        share = inside[~target.isnan()].float().mean()
        print(f"{name:8} {share:6.2f} {width:11.1f} {out.reference.threshold[column].sqrt():16.1f}")
    print(f"rows with at least one flagged output: {out.flagged.any(1).float().mean():.0%}")


if __name__ == "__main__":
    main()
