"""Intervals for a regression network at two levels, conformal with held-out data.

python examples/regression.py
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

import splitpoint as sp


def main() -> None:
    """Train a small network on the diabetes data and give its predictions intervals."""
    torch.manual_seed(0)
    x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    x, y = x * 20, y[:, None]
    train, held_out, test = ((x[rows], y[rows]) for rows in torch.randperm(len(x)).split([242, 100, 100]))

    net = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 1))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.mse_loss(net(train[0]), train[1]).backward()
        optimiser.step()

    method = sp.SplitPointRegressor(confidence_level=(0.5, 0.9))
    uq = method.fit(net, train, calibration=held_out, progress=False)
    out = uq(test[0])
    print("level  inside  mean width")
    for level in out.levels:
        low, high = out.interval(level)
        inside = (low <= test[1]) & (test[1] <= high)
        print(f"{level:5.2f} {inside.float().mean():7.2f} {(high - low).mean():11.0f}")
    print(f"first patient: predicted {out.mean[0, 0]:.0f}, observed {test[1][0, 0]:.0f},", end=" ")
    print(f"90% interval {out.lower[0, 0]:.0f} to {out.upper[0, 0]:.0f}")

    uq.set_threshold(held_out[0])
    strange = uq(test[0] * 4)
    print(f"flagged: {uq(test[0]).flagged.float().mean():.0%} of the test rows,", end=" ")
    print(f"{strange.flagged.float().mean():.0%} after multiplying their inputs by four")


if __name__ == "__main__":
    main()
