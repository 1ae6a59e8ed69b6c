"""Rooms that were drawn at random, and a folder of them in the true formats of the sets of scenes."""

import numpy as np
import torch

from splitpoint.datasets.entry import VARIABLE

SIZE = (16, 32)
"""Height and width of what is written here."""


def rooms(count, size=SIZE, seed=0):
    """Photographs uint8 (N, H, W, 3) and depths in metres (N, H, W): a floor that comes nearer, a wall and a box.

    What is farther away is darker.
    """
    random = np.random.default_rng(seed)
    height, width = size
    rows, columns = np.mgrid[0:height, 0:width]
    images, depths = [], []
    for _ in range(count):
        wall, horizon = random.uniform(5, 8), random.uniform(0.25, 0.45) * height
        floor = wall * horizon / np.maximum(rows, horizon)
        depth = np.minimum(wall, floor)
        left, top = random.integers(0, width - 4), random.integers(2, height - 4)
        box = (columns >= left) & (columns < left + 4) & (rows >= top) & (rows < top + 4)
        depth = np.where(box, np.minimum(depth, random.uniform(1, 3)), depth)
        light = np.exp(-depth / 6)[..., None] * np.array([1.0, 0.9, 0.8])
        images.append((255 * light * random.uniform(0.8, 1)).astype(np.uint8))
        depths.append(depth)
    return np.stack(images), np.stack(depths)


def scene_folder(folder, monkeypatch, count=360):
    """A data folder with rooms (300 + 60) and two sets (12, 10) that are blue above and grey below."""
    images, depths = rooms(count)
    steps = np.clip(depths / 0.04, 1, 254).astype(np.uint8)
    steps[:, 0, 0] = 0
    held = np.arange(count) // 5 % 6 == 5
    np.savez(
        folder / "nyu_64x80.npz",
        rgb=images,
        depth=steps,
        depth_scale_m=np.float32(0.04),
        train_idx=np.flatnonzero(~held),
        test_idx=np.flatnonzero(held),
    )
    for name, number in (("camvid", 12), ("kitti_road", 10)):
        sky = np.full((number, *SIZE, 3), 90, np.uint8)
        sky[:, : SIZE[0] // 2] = (90, 140, 230)
        names = np.array([f"{name}_{place:03d}.png" for place in range(number)])
        np.savez(folder / f"{name}_64x80.npz", rgb=sky, name=names)
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def room_tensors(count, size=SIZE, seed=0):
    """Images float32 (N, 3, H, W) in [0, 1] and depths (N, 1, H, W)."""
    images, depths = rooms(count, size, seed)
    return torch.from_numpy(images).permute(0, 3, 1, 2) / 255, torch.from_numpy(depths)[:, None].float()
