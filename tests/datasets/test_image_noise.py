"""Corruptions of images: those of the published severities, checked by hand numbers, moments, and Pillow's JPEG."""

import io

import numpy as np
import pytest
import torch

from splitpoint.datasets import image_noise
from splitpoint.datasets.image_noise import LAWS, corrupted


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def smooth(count=4, size=32, seed=0):
    """Random images that change slowly, in [0.1, 0.9]."""
    small = torch.rand(count, 3, 5, 5, generator=chance(seed))
    return 0.1 + 0.8 * torch.nn.functional.interpolate(small, (size, size), mode="bilinear")


@pytest.mark.parametrize("name", LAWS)
def test_every_law_keeps_the_shape_and_hurts_more_when_severe(name):
    images = smooth(8)
    distance = [(LAWS[name](images, severity, chance()) - images).square().mean().sqrt() for severity in (1, 3, 5)]
    assert LAWS[name](images, 2, chance()).shape == images.shape
    assert 0 < distance[0] <= distance[1] < distance[2] < 0.3


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("shape", [(2, 1, 20, 12), (1, 4, 7, 7)])
def test_laws_take_any_size_and_number_of_channels(name, shape):
    images = torch.rand(shape, generator=chance())
    found = LAWS[name](images, 3, chance(1))
    assert found.shape == shape
    assert found.isfinite().all()


def test_noise_has_the_published_moments():
    images = torch.full((200, 3, 32, 32), 0.5)
    assert (image_noise.gaussian_noise(images, 3, chance()) - 0.5).std() == pytest.approx(0.08, rel=0.02)
    shot = image_noise.shot_noise(images, 3, chance())
    assert (shot.mean(), shot.var()) == (pytest.approx(0.5, rel=0.01), pytest.approx(0.5 / 100, rel=0.02))
    impulses = image_noise.impulse_noise(images, 3, chance())
    assert ((impulses == 0).float().mean(), (impulses == 1).float().mean()) == (
        pytest.approx(0.015, rel=0.05),
        pytest.approx(0.015, rel=0.05),
    )


@pytest.mark.parametrize("law", [image_noise.defocus_blur, image_noise.motion_blur, image_noise.zoom_blur])
def test_blur_leaves_one_colour_as_it_is(law):
    images = torch.full((2, 3, 32, 32), 0.3)
    assert torch.allclose(law(images, 5, chance()), images, atol=1e-6)


def test_a_disk_of_radius_one_is_a_plus():
    images = torch.zeros(1, 1, 9, 9)
    images[0, 0, 4, 4] = 1
    found = image_noise.defocus_blur(images, 4, chance())[0, 0]
    edge = np.exp(-1 / (2 * 0.2**2))
    assert found[4, 4].item() == pytest.approx(0.2, abs=1e-4 + edge)
    assert found[3, 4].item() == pytest.approx(0.2, abs=1e-4 + edge)
    assert found[3, 3].item() == pytest.approx(0, abs=1e-4)
    assert found.sum().item() == pytest.approx(1, abs=1e-5)


def test_motion_goes_along_a_line_that_is_not_steep():
    images = torch.zeros(50, 1, 41, 41)
    images[:, 0, 20, 20] = 1
    found = image_noise.motion_blur(images, 5, chance())[:, 0]
    places = torch.arange(41.0) - 20
    assert torch.allclose(found.sum((1, 2)), torch.ones(50), atol=1e-5)
    across, along = (found.sum(1) @ places).abs(), (found.sum(2) @ places).abs()
    assert (across > along - 0.05).all()
    assert along.std() > 0.3


def test_light_by_hand():
    pixel = torch.tensor([0.4, 0.2, 0.1]).reshape(1, 3, 1, 1).expand(1, 3, 2, 2)
    lighter = image_noise.brightness(pixel, 2, chance())[0, :, 0, 0]
    assert torch.allclose(lighter, torch.tensor([0.5, 0.25, 0.125]))
    assert torch.allclose(image_noise.brightness(torch.zeros(1, 3, 2, 2), 5, chance()), torch.full((1, 3, 2, 2), 0.3))
    columns = torch.tensor([0.2, 0.6]).expand(1, 1, 2, 2)
    assert torch.allclose(image_noise.contrast(columns, 2, chance()), torch.tensor([0.3, 0.5]).expand(1, 1, 2, 2))


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_jpeg_is_that_of_pillow(severity):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    quality = (80, 65, 58, 50, 40)[severity - 1]
    images = (smooth(6) * 255).round() / 255
    images += 0.05 * torch.randn(images.shape, generator=chance())
    images = (images.clamp(0, 1) * 255).round() / 255
    ours = image_noise.jpeg(images, severity, chance()).clamp(0, 1)
    for before, after in zip(images, ours, strict=True):
        file = io.BytesIO()
        image.fromarray((before.permute(1, 2, 0) * 255).byte().numpy()).save(file, "JPEG", quality=quality)
        theirs = torch.from_numpy(np.array(image.open(file))).permute(2, 0, 1) / 255
        lost = (theirs - before).square().mean().sqrt()
        assert (after - theirs).square().mean().sqrt() < 0.25 * lost


def test_each_image_has_one_law_and_all_laws_occur():
    images = smooth(1).expand(200, -1, -1, -1)
    found = corrupted(images, 3, chance())
    assert (found.min() >= 0, found.max() <= 1) == (True, True)
    still = {name: law(images[:1], 3, chance()) for name, law in LAWS.items() if name not in {"motion_blur"}}
    for name in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg"):
        same = (found - still[name]).flatten(1).abs().amax(1) < 1e-5
        assert 6 <= same.sum() <= 40, name
    assert torch.equal(images, smooth(1).expand(200, -1, -1, -1))
    assert torch.equal(found, corrupted(images, 3, chance()))
    assert not torch.equal(found, corrupted(images, 3, chance(1)))
