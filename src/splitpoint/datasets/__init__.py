"""Data sets: plain tensors, no training code."""

from splitpoint.datasets.cubic import NOISE_LAWS, Cubic, cubic
from splitpoint.datasets.splits import Standardised, split, standardise
from splitpoint.datasets.uci import TABLES, Tabular, load

__all__ = ["NOISE_LAWS", "TABLES", "Cubic", "Standardised", "Tabular", "cubic", "load", "split", "standardise"]
