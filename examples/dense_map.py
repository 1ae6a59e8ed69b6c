"""A map as the target: one interval and one score for every pixel.

python examples/dense_map.py
"""

import torch
from torch import Tensor, nn

import splitpoint as sp


def scenes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Blobs (N, 1, 24, 24), and their heights measured with noise that grows with the height."""
    grid = torch.linspace(-1, 1, 24)
    centre = torch.rand(count, 2, 1, 1, generator=generator) * 1.6 - 0.8
    square = (grid[:, None] - centre[:, 0]) ** 2 + (grid[None, :] - centre[:, 1]) ** 2
    image = torch.exp(-4 * square)[:, None]
    noise = torch.randn(image.shape, generator=generator) * (0.02 + 0.2 * image)
    return image, 2 * image + noise


def main() -> None:
    """Train a small convolutional network, then look at the width of its intervals on the ground and on the hills."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train, held_out, test = (scenes(count, generator) for count in (80, 40, 40))
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(16, 1, 1))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.mse_loss(net(train[0]), train[1]).backward()
        optimiser.step()

    uq = sp.SplitPointRegressor(0.9, positions=32, folds=0, epochs=20).fit(net, train, progress=False)
    uq.set_threshold(held_out[0])
    out = uq(test[0])
    print(f"shapes: target {tuple(test[1].shape)}, lower {tuple(out.lower.shape)}, flagged {tuple(out.flagged.shape)}")
    print(f"inside the 90% interval: {sp.metrics.picp(out, test[1]):.2f}")
    width, high = out.upper - out.lower, test[0] > 0.5
    print(f"mean width: {width[~high].mean():.2f} on the ground, {width[high].mean():.2f} on the hills")

    covered = test[0].clone()
    covered[:, :, 8:16, 8:16] = 3.0  # a patch unlike anything in training
    flagged = uq(covered).flagged.float().mean((0, 1))
    print(f"flagged pixels: {out.flagged.float().mean():.0%} of clean images,", end=" ")
    print(f"{flagged[8:16, 8:16].mean():.0%} inside a strange patch")


if __name__ == "__main__":
    main()
