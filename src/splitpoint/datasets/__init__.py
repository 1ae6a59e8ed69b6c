"""Data sets: plain tensors, no training code."""

from splitpoint.datasets.cubic import NOISE_LAWS, Cubic, cubic

__all__ = ["NOISE_LAWS", "Cubic", "cubic"]
