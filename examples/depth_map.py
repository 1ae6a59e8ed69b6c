"""Depth maps: an interval for every pixel that holds on a new image, from a U-Net that is trained already.

python examples/depth_map.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import splitpoint as sp


def rooms(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Photographs (N, 1, 32, 32) of a wall, a floor and a box, and depths in metres, unknown (NaN) in a corner."""
    wall, side, box = torch.rand(3, count, 1, 1, generator=generator) * torch.tensor([5.0, 20, 1]).reshape(3, 1, 1, 1)
    rows, columns = torch.arange(32.0)[:, None], torch.arange(32.0)
    depth = (3 + wall) * 16 / rows.clamp(min=16)
    depth = torch.where((columns - side - 4).abs() + (rows - 18).abs() < 4, 1 + box, depth.expand(count, 32, 32))
    image = torch.exp(-depth / 6) + 0.02 * torch.randn(count, 32, 32, generator=generator)
    return image[:, None], depth.masked_fill((rows < 3) & (columns < 3), torch.nan)[:, None]


class UNet(nn.Module):
    """One step down and up again, with a skip: (N, 1, H, W) -> (N, 1, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse, self.joined = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((1, 8), (8, 16), (24, 8)))
        self.output = nn.Conv2d(8, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Depths of the images."""
        fine = self.fine(images).relu()
        coarse = F.interpolate(self.coarse(F.max_pool2d(fine, 2)).relu(), scale_factor=2)
        return self.output(self.joined(torch.cat([fine, coarse], 1)).relu())


def main() -> None:
    """Train the network, fit intervals with held-out images, and look at how single images are covered."""
    torch.manual_seed(0)
    train, held_out, test = (rooms(count, torch.Generator().manual_seed(count)) for count in (120, 60, 40))
    net, known = UNet(), ~train[1].isnan()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(120):
        optimiser.zero_grad()
        F.mse_loss(net(train[0])[known], train[1][known]).backward()
        optimiser.step()
    method = sp.SplitPointRegressor(0.9, positions=64, epochs=10)
    uq = method.fit(net, train, calibration=held_out, progress=False).set_threshold(held_out[0])
    out = uq(test[0])
    share = ((out.lower <= test[1]) & (test[1] <= out.upper)).flatten(1).sum(1) / (~test[1].isnan()).flatten(1).sum(1)
    print(f"pixels inside the 90% interval: {share.mean():.2f}, in one image of ten below {share.quantile(0.1):.2f}")
    print(f"mean width: {(out.upper - out.lower).mean():.2f} m; mean error: {sp.metrics.mae(out, test[1]):.2f} m")
    noise = uq(torch.rand_like(test[0]))
    print(f"flagged pixels: {out.flagged.float().mean():.0%} of rooms, {noise.flagged.float().mean():.0%} of noise")


if __name__ == "__main__":
    main()
