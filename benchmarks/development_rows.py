"""Development cells of tables and of sound: small networks that are trained here, in seconds."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor, nn

from development_cell import Cell, cell_of, file_of, seeded, train

STRANGERS = ("theo", "yweweler")
"""Speakers that the network of spoken digits never hears."""

RATE, WINDOW, BANDS, FRAMES = 8000, 256, 32, 24


def mlp(inputs: int, classes: int) -> nn.Module:
    """Two hidden layers of 64 ReLU units."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))


def shuffled_columns(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every feature in an order of its own, so that each is distributed as before and nothing fits together."""
    return x.gather(0, torch.rand(x.shape, generator=generator).argsort(0))


def memorised(x: Tensor, label: Tensor, count: int, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network trained for 300 epochs on `count` random rows, with these rows, their labels, and the other ones."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    fit, rest = order[:count], order[count:]
    x = (x - x[fit].mean(0)) / x[fit].std(0).clamp_min(1e-6)
    network = train(seeded(lambda: mlp(x.shape[1], int(label.max()) + 1), seed), x[fit], label[fit], epochs=300)
    return network, (x[fit], label[fit], x[rest], label[rest])


def overfit_mlp() -> Cell:
    """A classifier of handwritten digits (six views side by side) that has memorised its 976 rows.

    Foreign are test rows with every feature shuffled, normal noise, and photographed faces: the first features of
    the PIE set, standardised by themselves.
    """
    with np.load(file_of("multiview/handwritten.npz"), allow_pickle=False) as file:
        x = torch.from_numpy(np.concatenate([file[f"view{view}"] for view in range(6)], 1)).float()
        label = torch.from_numpy(file["y"].astype(np.int64))
    with np.load(file_of("multiview/pie.npz"), allow_pickle=False) as file:
        faces = torch.from_numpy(np.concatenate([file[f"view{view}"] for view in range(3)], 1)).float()
    faces = faces[:, : x.shape[1]]
    faces = (faces - faces.mean(0)) / faces.std(0).clamp_min(1e-6)
    network, (fit, fit_label, rest, rest_label) = memorised(x, label, 976)
    generator = torch.Generator().manual_seed(1)
    foreign = {
        "permuted": shuffled_columns(rest, generator),
        "noise": torch.randn(rest.shape, generator=generator),
        "faces": faces,
    }
    return cell_of(network, (fit, fit_label), (rest, rest_label), foreign)


# Spoken digits


def filters(bands: int = BANDS, window: int = WINDOW, rate: int = RATE) -> Tensor:
    """Triangles (frequencies, bands) evenly spaced on the mel scale from 50 Hz to half of the rate."""
    mel = torch.linspace(2595 * np.log10(1 + 50 / 700), 2595 * np.log10(1 + rate / 2 / 700), bands + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    hertz = torch.linspace(0, rate / 2, window // 2 + 1).unsqueeze(1)
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp_min(0)


def log_mel(wave: Tensor) -> Tensor:
    """Power of a clip (samples,) in dB below its largest, from -80 to 0 brought to -2 to 2: (1, bands, frames)."""
    padded = nn.functional.pad(wave, (0, max(0, WINDOW - len(wave))))
    spectrum = torch.stft(padded, WINDOW, WINDOW // 2, window=torch.hann_window(WINDOW), return_complex=True)
    power = (filters().T @ spectrum.abs().square()).clamp_min(1e-10)
    level = (10 * (power / power.max()).log10()).clamp_min(-80) / 20 + 2
    return nn.functional.adaptive_avg_pool1d(level.unsqueeze(0), FRAMES)


def chirp(length: int, generator: torch.Generator) -> Tensor:
    """Three tones that glide between random pitches, as loud as each other."""
    time = torch.arange(length) / RATE
    first, last, phase = torch.rand(3, 3, 1, generator=generator)
    low, high = 100 + 1900 * first, 100 + 1900 * last
    sweep = low * time + (high - low) * time.square() / (2 * length / RATE)
    return torch.sin(2 * torch.pi * (sweep + phase)).sum(0)


def listener() -> nn.Module:
    """Two convolutions and a hidden layer of 128 units."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (BANDS // 4) * (FRAMES // 4), 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def fsdd() -> Cell:
    """Spoken digits of four speakers, a fifth of the clips held out at random.

    Foreign are two other speakers (near: the digits are the same), the test clips played backwards, white noise, and
    chords of gliding tones, as long as test clips.
    """
    with np.load(file_of("fsdd_8khz.npz"), allow_pickle=False) as file:
        ends, wave = file["offset"], torch.from_numpy(file["wave"].astype(np.float32) / 2**15)
        label, stranger = torch.from_numpy(file["digit"].astype(np.int64)), np.isin(file["speaker"], STRANGERS)
    clips = [wave[start:stop] for start, stop in itertools.pairwise(ends)]
    x = torch.stack([log_mel(clip) for clip in clips])
    generator = torch.Generator().manual_seed(0)
    known = torch.from_numpy(np.flatnonzero(~stranger))
    known = known[torch.randperm(len(known), generator=generator)]
    rest, fit = known[: len(known) // 5], known[len(known) // 5 :]
    network = train(seeded(listener, 0), x[fit], label[fit], epochs=15)
    tested = [clips[row] for row in rest.tolist()]
    foreign = {
        "speakers": x[torch.from_numpy(stranger)],
        "reversed": torch.stack([log_mel(clip.flip(0)) for clip in tested]),
        "noise": torch.stack([log_mel(torch.randn(len(clip), generator=generator)) for clip in tested]),
        "chirps": torch.stack([log_mel(chirp(len(clip), generator)) for clip in tested]),
    }
    return cell_of(network, (x[fit], label[fit]), (x[rest], label[rest]), foreign)
