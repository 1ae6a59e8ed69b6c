"""Folders of small images, one sub-folder for each class."""

import numpy as np
from PIL import Image


def image_folder(folder, classes, count, size=(12, 10)):
    """PNG files of noise around a brightness for each class."""
    random = np.random.default_rng(0)
    for name, level in classes.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = level + random.integers(-30, 30, (*size, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
