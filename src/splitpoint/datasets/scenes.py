"""Scenes with depths, and scenes out of distribution, read from their files in the folders of SPLITPOINT_DATA.

`load` gives a part of a set, `splits` its training, held-out, calibration and test parts, neighbours in the same one.
Images are in [0, 1] and depths in metres, NaN where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from splitpoint.datasets.blocks import blocks, runs, split_blocks
from splitpoint.datasets.registry import SCENES
from splitpoint.datasets.scene_set import SceneSet, Size
from splitpoint.errors import SettingsError

__all__ = ["SCENES", "SceneSet", "SceneSplits", "blocks", "load", "runs", "split_blocks", "splits"]


def load(name: str, part: Literal["train", "test"], *, size: Size | None = None) -> SceneSet:
    """The training or test part of a set of `SCENES`, brought to `size` (height, width) if one is given.

    A set that is missing is a DataError that says where its files must lie or what to do.
    """
    if name not in SCENES:
        raise SettingsError(f"Expected a set of scenes among {', '.join(SCENES)}, but got {name!r}.")
    entry = SCENES[name]
    form, path = entry.form_for(part)
    found = form.reader(entry, path, part)
    return found if size is None else found.fitted_to(size)


@dataclass(frozen=True)
class SceneSplits:
    """Parts of one set: networks learn `train`, stop by `held_out`, are calibrated with `calibration`."""

    train: SceneSet
    held_out: SceneSet
    calibration: SceneSet
    test: SceneSet


def splits(
    name: str, *, held_out: float = 0.1, calibration: float = 0.1, seed: int = 0, size: Size | None = None
) -> SceneSplits:
    """Take about the shares `held_out` and `calibration` of the official training part; the test part is the official.

    Groups of images that were taken one after the other stay together (`split_blocks`), and images stay in their order.
    The split depends on `seed` alone.
    """
    if min(held_out, calibration) <= 0 or held_out + calibration >= 1:
        raise SettingsError(
            "Expected held_out and calibration to be shares above 0 that leave something to train on, "
            f"but got {held_out} and {calibration}."
        )
    official = load(name, "train", size=size)
    shares = (1 - held_out - calibration, held_out, calibration)
    parts = split_blocks(official.groups, shares, torch.Generator().manual_seed(seed))
    learned, watched, kept = (official.at(places) for places in parts)
    return SceneSplits(learned, watched, kept, load(name, "test", size=size))
