"""Wav files as log mel power, (1, 128, 128): 128 bands of 0 to 8000 Hz by 128 frames, the first 1.16 s.

LUMA's baselines take 128 bands of windows of 400 samples, 200 apart, of 22,050 Hz, as power; the same times and numbers
are used here for any rate, on the scale of `sounds`.
"""

from __future__ import annotations

import math
import wave
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splitpoint.datasets.sounds import loudness
from splitpoint.errors import DataError

BANDS = FRAMES = 128
TOP = 8000.0
"""Hz at the upper end of the last band."""

WINDOW, HOP = 400 / 22050, 200 / 22050
"""Seconds."""

CHUNK = 64
"""Sounds whose powers are in memory at once."""


def read_wav(path: Path) -> tuple[Tensor, int]:
    """Samples (T,) in [-1, 1], the mean of the channels, and their rate, of a file of 8, 16, 24 or 32 bit PCM."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            content = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(
            f"Expected {path} to be a wav file of 8, 16, 24 or 32 bit PCM, but it cannot be read ({error}); "
            "convert it or put the file there again."
        ) from error
    content = content[: len(content) // (width * channels) * width * channels]
    data = np.frombuffer(content, np.uint8).reshape(-1, width)
    if width == 1:
        samples = data[:, 0].astype(np.float32) / 128 - 1
    else:
        wide = np.zeros((len(data), 4), np.uint8)
        wide[:, 4 - width :] = data
        samples = (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    return torch.from_numpy(samples.reshape(-1, channels).mean(1)), rate


def mel_power(samples: Tensor, rate: int) -> Tensor:
    """Mel powers (1, 128, 128) of samples (T,); what is short is followed by silence, what is long is cut off."""
    window, hop = round(WINDOW * rate), round(HOP * rate)
    length = (FRAMES - 1) * hop + window
    padded = torch.zeros(length)
    padded[: min(length, len(samples))] = samples[:length]
    frames = padded.unfold(0, window, hop) * torch.hann_window(window)
    bank = filter_bank(rate)
    power: Tensor = torch.fft.rfft(frames, 2 * (bank.shape[1] - 1)).abs().square()
    return torch.mm(bank, power.T)[None]


@lru_cache
def filter_bank(rate: int) -> Tensor:
    """Triangles (128, F) over the F frequencies of an FFT, evenly spaced in mel, ``2595 log10(1 + Hz / 700)``.

    The FFT is long enough for every band below half the `rate` to have a frequency in it: the first is 27 Hz wide.
    """
    size = 2 ** math.ceil(math.log2(rate / 25))
    edges = 700 * (
        10 ** (torch.linspace(0, 2595 * math.log10(1 + TOP / 700), BANDS + 2, dtype=torch.float64) / 2595) - 1
    )
    hertz = torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return torch.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle)).clamp(min=0).float()


def log_mels(paths: Sequence[Path]) -> Tensor:
    """The wav files, float32 (n, 1, 128, 128) in [0, 1]."""
    found = torch.empty(len(paths), 1, BANDS, FRAMES)
    for start in range(0, len(paths), CHUNK):
        part = paths[start : start + CHUNK]
        found[start : start + CHUNK] = loudness(torch.stack([mel_power(*read_wav(path)) for path in part]))
    return found
