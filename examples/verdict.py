"""One page that says whether the uncertainty of a model can be trusted: a network with and without calibration rows.

python examples/verdict.py

Needs scikit-learn (`pip install '.[demo]'`); writes verdict.html into the working folder.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import splitpoint as sp


def main() -> None:
    """Train a small network on few digits for too long, and judge its own probabilities and calibrated ones."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    x += 0.4 * torch.randn(x.shape)
    train, held_out, test = ((x[rows], y[rows]) for rows in torch.randperm(len(x)).split([300, 700, 797]))

    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(train[0]), train[1]).backward()
        optimiser.step()

    shuffled = test[0][:, torch.randperm(64)]
    for name, calibration in {"its own probabilities": None, "calibrated": held_out}.items():
        clf = sp.SplitPointClassifier().fit(net, train, calibration=calibration, progress=False)
        clf.set_threshold(held_out)
        found = sp.verdict(clf, test, train, ood=shuffled)
        print(f"{name}: {found.light}, {found.headline}")
        print("".join(f"  - {reason}\n" for reason in found.reasons))
    found.save("verdict.html")
    print(found)


if __name__ == "__main__":
    main()
