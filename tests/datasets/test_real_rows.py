"""The recipe on real rows: skipped where SPLITPOINT_DATA does not name the data sets."""

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.datasets.entry import find
from splitpoint.errors import DataError
from splitpoint.metrics import picp, spearman, winkler


def yacht(trial):
    try:
        path = find("uci/yacht.npz")
    except DataError as error:
        pytest.skip(str(error))
    with np.load(path) as file:
        x, y = file["X"].astype(np.float32), file["y"].astype(np.float32).reshape(-1, 1)
        train, test = file[f"train_{trial}"], file[f"test_{trial}"]
    x = (x - x[train].mean(0)) / x[train].std(0)
    y = (y - y[train].mean()) / y[train].std()
    return tuple(torch.tensor(part) for part in (x[train], y[train], x[test], y[test]))


def network(x, y, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, 1))
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in range(60):
            for rows in torch.randperm(len(x)).split(64):
                optimiser.zero_grad()
                nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
                optimiser.step()
    return net


def test_intervals_and_scores_on_real_rows_are_better_than_a_constant_interval():
    parts = [yacht(trial) for trial in range(3)]
    nets = [network(x, y, trial) for trial, (x, y, _, _) in enumerate(parts)]
    fitted = sp.SplitPointRegressor().fit_many(nets, [part[:2] for part in parts], progress=False)
    coverage, ours, constant, ranks = [], [], [], []
    for uq, net, (x, y, x_test, y_test) in zip(fitted, nets, parts, strict=True):
        out = uq(x_test)
        coverage.append(picp(out, y_test))
        ours.append(winkler(out, y_test))
        ranks.append(spearman(out.total, (out.mean - y_test).abs()))
        with torch.no_grad():
            residual = y - net(x)
            missed = (y_test - net(x_test)).abs() - residual.abs().quantile(0.95)
        constant.append(float(2 * residual.abs().quantile(0.95) + 40 * missed.clamp(min=0).mean()))
    assert np.mean(coverage) > 0.88
    assert np.mean(ours) < np.mean(constant)
    assert np.mean(ranks) > 0.5
