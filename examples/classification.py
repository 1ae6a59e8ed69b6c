"""Calibrated probabilities and an alarm for inputs out of distribution, on scikit-learn's digits.

python examples/classification.py

Needs scikit-learn (`pip install '.[demo]'`); writes digits.safetensors into the working folder.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import splitpoint as sp


def main() -> None:
    """Train a small network on digits, calibrate it, save it, and show it digits with shuffled pixels."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    train, held_out, test = ((x[rows], y[rows]) for rows in torch.randperm(len(x)).split([900, 400, 497]))

    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(120):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(train[0]), train[1]).backward()
        optimiser.step()

    clf = sp.SplitPointClassifier().fit(net, train, calibration=held_out, progress=False)
    clf.set_threshold(held_out[0])
    clf.save("digits.safetensors")
    clf = sp.load("digits.safetensors", net)

    out = clf(test[0])
    print("probabilities  accuracy    ECE    NLL")
    for name, probs in {"base model": out.base_probs, "calibrated": out.probs}.items():
        scores = [metric(probs, test[1]) for metric in (sp.metrics.accuracy, sp.metrics.ece, sp.metrics.nll)]
        print(f"{name:13} {scores[0]:9.3f} {scores[1]:6.3f} {scores[2]:6.3f}")

    wrong = out.label != test[1]
    print(f"AUROC of the total score for errors: {sp.metrics.auroc(out.total[~wrong], out.total[wrong]):.3f}")

    ood = clf(test[0][:, torch.randperm(64)])
    print(f"AUROC of the epistemic score out of distribution: {sp.metrics.auroc(out.epistemic, ood.epistemic):.3f}")
    print(f"flagged: {out.flagged.float().mean():.0%} of the digits,", end=" ")
    print(f"{ood.flagged.float().mean():.0%} of digits with shuffled pixels")


if __name__ == "__main__":
    main()
