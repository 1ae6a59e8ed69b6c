"""Data sets: plain tensors, no training code."""

from splitpoint.datasets.cubic import Cubic, cubic
from splitpoint.datasets.noise import NOISE_LAWS, UCI_NOISE_LAWS, NoiseLaw

__all__ = ["NOISE_LAWS", "UCI_NOISE_LAWS", "Cubic", "NoiseLaw", "cubic"]
