"""Corruptions of images as LUMA has them, computed with torch: what Hendrycks and Dietterich (2019) call CIFAR-C.

LUMA draws one of fifteen corruptions for every image. The ten of `LAWS` need nothing but torch; glass, snow, fog, frost
and elastic are left out, of which frost needs photographs of its own. The strengths are the published ones of severity
1 to 5. Every law takes images (n, C, H, W) in [0, 1], the severity and a generator, and returns images that may leave
[0, 1] a little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

Law: TypeAlias = Callable[[Tensor, int, torch.Generator], Tensor]

SEVERITIES = 5

_Strength = TypeVar("_Strength")


def corrupted(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Each of the images (n, C, H, W) with one of `LAWS`, drawn evenly, and cut off at [0, 1]."""
    laws = torch.randint(len(LAWS), (len(images),), generator=generator)
    found = images.clone()
    for number, law in enumerate(LAWS.values()):
        places = (laws == number).nonzero()[:, 0]
        if len(places):
            found[places] = law(images[places], severity, generator)
    return found.clamp_(0, 1)


def _at(severity: int, *strengths: _Strength) -> _Strength:
    return strengths[severity - 1]


# Noise


def gaussian_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Normal noise on every value."""
    return images + _at(severity, 0.04, 0.06, 0.08, 0.09, 0.10) * torch.randn(images.shape, generator=generator)


def shot_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Counts of a Poisson law, whose mean is the value times the number of photons that make white."""
    photons = _at(severity, 500, 250, 100, 75, 50)
    return torch.poisson(images * photons, generator=generator) / photons


def impulse_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """A share of the values becomes 0 or 1."""
    share = _at(severity, 0.01, 0.02, 0.03, 0.05, 0.07)
    drawn = torch.rand(images.shape, generator=generator)
    return torch.where(drawn < share, (drawn < share / 2).to(images), images)


# Blur


def defocus_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001  # one interface
    """The mean over a disk whose edge is softened."""
    radius, soft = _at(severity, (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
    steps = torch.arange(-2.0, 3.0)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).float()
    edge = torch.exp(-(torch.arange(-1.0, 2.0) ** 2) / (2 * soft**2))
    edge = edge[:, None] * edge / edge.sum() ** 2
    kernel = F.conv2d(disk[None, None] / disk.sum(), edge[None, None], padding=1)
    return _filtered(images, kernel.expand(len(images), -1, -1, -1))


def motion_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """A mean along a line from each pixel, with normal weights, in a direction between -45 and 45 degrees."""
    length, spread = _at(severity, (6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
    angles = (torch.rand(len(images), generator=generator) - 0.5) * math.pi / 2
    steps = torch.arange(length + 1.0)
    weights = torch.exp(-(steps**2) / (2 * spread**2))
    columns, rows = angles.cos()[:, None] * steps, angles.sin()[:, None] * steps
    grid = torch.arange(-float(length), length + 1.0)
    near_row = (1 - (rows[:, :, None] - grid).abs()).clamp(min=0)
    near_column = (1 - (columns[:, :, None] - grid).abs()).clamp(min=0)
    return _filtered(images, torch.einsum("s,nsr,nsc->nrc", weights / weights.sum(), near_row, near_column)[:, None])


def zoom_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001  # one interface
    """The mean of the image and of itself seen ever nearer, in steps of 1%."""
    zooms = 1 + torch.arange(_at(severity, 6, 11, 16, 21, 26)) / 100
    seen = [images]
    for zoom in zooms.tolist():
        look = torch.tensor([[1 / zoom, 0.0, 0.0], [0.0, 1 / zoom, 0.0]]).expand(len(images), -1, -1)
        grid = F.affine_grid(look, list(images.shape), align_corners=False)
        seen.append(F.grid_sample(images, grid, padding_mode="border", align_corners=False))
    return torch.stack(seen).mean(0)


def _filtered(images: Tensor, kernels: Tensor) -> Tensor:
    """Every channel of each image with the kernel (n, 1, k, k) of that image; what is outside mirrors the inside."""
    count, channels, height, width = images.shape
    margin = kernels.shape[-1] // 2
    padded = F.pad(images, [margin] * 4, mode="reflect" if margin < min(height, width) else "replicate")
    each = kernels.repeat_interleave(channels, 0).to(images)
    return F.conv2d(padded.reshape(1, -1, *padded.shape[2:]), each, groups=count * channels).reshape(images.shape)


# Light and detail


def brightness(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001  # one interface
    """A lighter value (the largest channel) at the same hue and saturation."""
    value = images.amax(1, keepdim=True)
    lighter = (value + _at(severity, 0.05, 0.1, 0.15, 0.2, 0.3)).clamp(max=1)
    return torch.where(value > 0, images * lighter / value.clamp(min=1e-6), lighter)


def contrast(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001  # one interface
    """Every channel nearer to its mean."""
    means = images.mean((2, 3), keepdim=True)
    return means + (images - means) * _at(severity, 0.75, 0.5, 0.4, 0.3, 0.15)


def pixelate(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001  # one interface
    """Fewer pixels, and each of them larger."""
    height, width = images.shape[2:]
    share = _at(severity, 0.95, 0.9, 0.85, 0.75, 0.65)
    small = F.interpolate(images, (max(1, int(height * share)), max(1, int(width * share))), mode="area")
    return F.interpolate(small, (height, width), mode="area")


def jpeg(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001  # one interface
    """What JPEG leaves: brightness and halved colours in blocks of 8 x 8, cosines rounded by the standard tables."""
    quality = _at(severity, 80, 65, 58, 50, 40)
    height, width = images.shape[2:]
    padded = F.pad(images * 255, (0, -width % 16, 0, -height % 16), mode="replicate")
    if images.shape[1] != 3:
        return _rounded(padded - 128, _BRIGHTNESS, quality)[..., :height, :width].add(128) / 255
    turn = torch.tensor(_YCBCR).to(images)
    parts = torch.einsum("ij,njhw->nihw", turn, padded)
    light = _rounded(parts[:, :1] - 128, _BRIGHTNESS, quality) + 128
    colour = _rounded(F.avg_pool2d(parts[:, 1:], 2), _COLOUR, quality)
    parts = torch.cat([light, F.interpolate(colour, scale_factor=2.0, mode="bilinear")], 1)
    back = torch.einsum("ij,njhw->nihw", torch.linalg.inv(turn), parts)
    return back[..., :height, :width] / 255


_YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.299 / 1.772, -0.587 / 1.772, 0.886 / 1.772),
    (0.701 / 1.402, -0.587 / 1.402, -0.114 / 1.402),
)
"""Brightness and the two differences of colour from red, green and blue (JFIF)."""

# fmt: off
_BRIGHTNESS = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
)
_COLOUR = (
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99,
    47, 66, 99, 99, 99, 99, 99, 99, *(99,) * 32,
)
"""Steps at quality 50, row by row (ITU-T T.81, annex K)."""
# fmt: on


def _rounded(planes: Tensor, table: Sequence[int], quality: int) -> Tensor:
    """Planes (n, C, H, W) whose sides are multiples of 8, with the cosines of their blocks rounded to steps."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    steps = ((torch.tensor(table).reshape(8, 8) * scale + 50) / 100).floor().clamp(1, 255).to(planes)
    place = torch.arange(8.0)
    cosines = torch.cos((2 * place + 1) * place[:, None] * math.pi / 16) / 2
    cosines[0] /= math.sqrt(2)
    cosines = cosines.to(planes)
    blocks = planes.unfold(2, 8, 8).unfold(3, 8, 8)
    waves = torch.einsum("ui,ncabij,vj->ncabuv", cosines, blocks, cosines)
    blocks = torch.einsum("ui,ncabuv,vj->ncabij", cosines, (waves / steps).round() * steps, cosines)
    return blocks.permute(0, 1, 2, 4, 3, 5).reshape(planes.shape)


LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        defocus_blur,
        motion_blur,
        zoom_blur,
        brightness,
        contrast,
        pixelate,
        jpeg,
    )
}
"""The corruptions by name."""
