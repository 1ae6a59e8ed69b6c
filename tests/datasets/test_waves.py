"""Wav files, and mel powers compared with numbers worked out by hand."""

import numpy as np
import pytest
import torch

from luma_files import RATE, tone, wav
from splitpoint.datasets.waves import filter_bank, log_mels, mel_power, read_wav
from splitpoint.errors import DataError


@pytest.mark.parametrize(("width", "step"), [(1, 2**-7), (2, 2**-15), (3, 2**-23), (4, 2**-24)])
def test_pcm_of_every_width_is_read(tmp_path, width, step):
    samples = np.random.default_rng(0).uniform(-1, 1, 200)
    found, rate = read_wav(wav(tmp_path / "a.wav", samples, rate=8000, width=width))
    assert rate == 8000
    assert np.abs(found.numpy() - samples).max() <= 2 * step
    assert found.dtype == torch.float32


def test_channels_are_averaged(tmp_path):
    samples = np.stack([np.full(50, 0.5), np.linspace(-0.5, 0.5, 50)], 1)
    found, _ = read_wav(wav(tmp_path / "a.wav", samples, channels=2))
    assert found.numpy() == pytest.approx(samples.mean(1), abs=1e-4)


def test_what_is_no_wav_of_pcm_is_refused(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(DataError, match=r"Expected .*a.wav to be a wav file of 8, 16, 24 or 32 bit PCM, but it cannot"):
        read_wav(tmp_path / "a.wav")
    with pytest.raises(DataError, match=r"b.wav to be a wav file"):
        read_wav(tmp_path / "b.wav")


@pytest.mark.parametrize("rate", [16000, 22050, 44100, 48000])
def test_a_tone_is_in_its_band_at_any_rate(rate):
    mel = 2595 * np.log10(1 + 1000 / 700)
    top = 2595 * np.log10(1 + 8000 / 700)
    expected = mel / top * 129 - 1
    samples = torch.sin(2 * torch.pi * 1000 * torch.arange(2 * rate) / rate)
    power = mel_power(samples, rate)
    assert power.shape == (1, 128, 128)
    assert abs(power[0].argmax(0) - expected).max() <= 1
    bank = filter_bank(rate)
    assert (bank.amax(1) > 0).all()
    assert 0.5 < bank.max() <= 1


def test_power_is_that_of_a_windowed_fft():
    samples = torch.randn(RATE, generator=torch.Generator().manual_seed(0))
    piece = samples[3 * 200 : 3 * 200 + 400].double() * torch.hann_window(400).double()
    expected = filter_bank(RATE).double() @ torch.from_numpy(np.abs(np.fft.rfft(piece.numpy(), 1024)) ** 2)
    assert torch.allclose(mel_power(samples, RATE)[0, :, 3].double(), expected, rtol=1e-3, atol=1e-6)


def test_short_sounds_end_in_silence_and_long_ones_are_cut():
    assert mel_power(torch.ones(0), RATE).sum() == 0
    short = mel_power(torch.from_numpy(tone(50)).float(), RATE)[0]
    assert (short[:, :8].sum(0) > 0).all()
    assert short[:, 12:].sum() == 0
    long = torch.randn(60000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(mel_power(long, RATE), mel_power(long[:25800], RATE))


def test_files_become_maps_between_0_and_1(tmp_path):
    paths = [wav(tmp_path / f"{number}.wav", tone(40 * number)) for number in range(3)]
    found = log_mels(paths)
    assert (found.shape, found.dtype) == ((3, 1, 128, 128), torch.float32)
    assert (found.min(), found.amax((1, 2, 3)).tolist()) == (0, [1, 1, 1])
    loudest = found[:, 0, :, 2].argmax(1)
    assert loudest[0] < loudest[1] < loudest[2]
    assert log_mels([]).shape == (0, 1, 128, 128)
