"""Intervals for a regression network: fitted, then conformal with held-out data.

python examples/regression.py
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

import splitpoint as sp


def main() -> None:
    """Train a small network on the diabetes data and compare two ways to calibrate its intervals."""
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

    print("interval   inside  above  below  width")
    for name, calibration in {"split": None, "conformal": held_out}.items():
        method = sp.SplitPointRegressor(confidence_level=(0.5, 0.9))
        uq = method.fit(net, train, calibration=calibration, progress=False)
        out = uq(test[0])
        shares = [metric(out, test[1]) for metric in (sp.metrics.picp, sp.metrics.picp_up, sp.metrics.picp_down)]
        print(f"{name:10} {shares[0]:6.2f} {shares[1]:6.2f} {shares[2]:6.2f} {sp.metrics.mpiw(out, test[1]):6.0f}")

    low, high = out.interval(0.5)
    print(f"first patient: predicted {out.mean[0, 0]:.0f}, observed {test[1][0, 0]:.0f},", end=" ")
    print(f"half of the cases in {low[0, 0]:.0f} to {high[0, 0]:.0f},", end=" ")
    print(f"90% in {out.lower[0, 0]:.0f} to {out.upper[0, 0]:.0f}")

    uq.set_threshold(held_out[0])
    strange = uq(test[0] * 4)
    print(f"flagged: {uq(test[0]).flagged.float().mean():.0%} of the test rows,", end=" ")
    print(f"{strange.flagged.float().mean():.0%} after multiplying their inputs by four")


if __name__ == "__main__":
    main()
