"""Data sets: plain tensors, no training code."""

from splitpoint.datasets.cubic import NOISE_LAWS, UCI_NOISE_LAWS, Cubic, NoiseLaw, cubic
from splitpoint.datasets.registry import SETS, TABLES
from splitpoint.datasets.tables import Standardised, Tabular, load, split, standardise

__all__ = [
    "NOISE_LAWS",
    "SETS",
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
