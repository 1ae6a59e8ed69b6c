"""The two small base networks of the demonstration, trained the ordinary way, knowing nothing of uncertainty."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm


class CubicNet(nn.Module):
    """Two hidden layers of 64 units on one input; works in units of the task's own scales."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1) -> (N, 1)."""
        out = self.body(x / 2) * self.scale
        assert isinstance(out, Tensor)
        return out


class DigitsNet(nn.Module):
    """A small convolutional network for 8x8 images: two convolutions, one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 16, 64),
            nn.ReLU(),
        )
        self.classes = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, 8, 8) -> logits (N, 10)."""
        out = self.classes(self.body(x))
        assert isinstance(out, Tensor)
        return out


def train_cubic(x: Tensor, y: Tensor, seed: int, progress: bool, epochs: int = 1500) -> CubicNet:
    """Least squares, full batch, Adam at 1e-3."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = CubicNet(float(y.std()))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in tqdm(range(epochs), desc="cubic base network", leave=False, disable=not progress):
        optimiser.zero_grad()
        F.mse_loss(net(x) / net.scale, y / net.scale).backward()
        optimiser.step()
    return net.eval()


def train_digits(x: Tensor, y: Tensor, seed: int, progress: bool, epochs: int = 40) -> DigitsNet:
    """Cross-entropy, batches of 32, Adam at 1e-3."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = DigitsNet()
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in tqdm(range(epochs), desc="digits base network", leave=False, disable=not progress):
        for rows in torch.randperm(len(x), generator=generator).split(32):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return net.eval()
