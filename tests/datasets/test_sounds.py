"""Log mel power on a scale of 0 to 1, and sounds heard together."""

import pytest
import torch

from splitpoint.datasets.sounds import loudness, power_of, with_background


def powers(count=3, seed=0):
    return torch.rand(count, 1, 6, 5, generator=torch.Generator().manual_seed(seed)) ** 4


def test_the_scale_by_hand():
    power = torch.tensor([1.0, 0.1, 1e-4, 1e-8, 1e-9, 0.0]).reshape(1, 1, 2, 3)
    assert torch.allclose(loudness(power).flatten(), torch.tensor([1, 0.875, 0.5, 0, 0, 0]), atol=1e-6)
    assert torch.allclose(loudness(1000 * power), loudness(power))
    assert loudness(torch.zeros(1, 1, 2, 2)).sum() == 0


def test_powers_come_back_relative_to_the_maximum():
    power = powers() + 1e-6
    assert torch.allclose(power_of(loudness(power)), power / power.amax((1, 2, 3), keepdim=True), rtol=1e-4)


def test_a_background_has_the_ratio_that_was_asked_for():
    sounds, background = loudness(powers(seed=1)), loudness(powers(seed=2))
    ratio = torch.tensor([0.0, 3.0, 10.0])
    found = with_background(sounds, background, ratio)
    wanted, other = power_of(sounds), power_of(background)
    for row, decibels in enumerate(ratio.tolist()):
        gain = wanted[row].mean() / other[row].mean() / 10 ** (decibels / 10)
        both = wanted[row] + gain * other[row]
        assert (gain * other[row]).mean() / wanted[row].mean() == pytest.approx(10 ** (-decibels / 10), rel=1e-5)
        assert torch.allclose(power_of(found)[row], both / both.max(), rtol=1e-3, atol=2e-8)


def test_a_sound_over_itself_or_over_silence_is_the_same_sound():
    sounds = loudness(powers())
    assert torch.allclose(with_background(sounds, sounds, torch.full((3,), 5.0)), sounds, atol=1e-5)
    assert torch.allclose(with_background(sounds, torch.zeros_like(sounds), torch.zeros(3)), sounds, atol=1e-5)
    assert with_background(torch.zeros_like(sounds), sounds, torch.zeros(3)).sum() == 0
