"""Data sets: plain tensors, no training code."""

from splitpoint.datasets.cubic import Cubic, cubic
from splitpoint.datasets.noise import NOISE_LAWS, UCI_NOISE_LAWS, NoiseLaw
from splitpoint.datasets.splits import Standardised, split, standardise
from splitpoint.datasets.uci import TABLES, Tabular, load

__all__ = [
    "NOISE_LAWS",
    "TABLES",
    "UCI_NOISE_LAWS",
    "Cubic",
    "NoiseLaw",
    "Standardised",
    "Tabular",
    "cubic",
    "load",
    "split",
    "standardise",
]
