"""Small sets of scenes in the true formats of the large ones, written into a folder."""

import numpy as np
import scipy.io

from image_files import image_file, noise_images

SIZE = (6, 8)
"""Height and width of what is written here."""


def depth_bytes(count, size=SIZE, seed=0):
    """Bytes between 1 and 254, (count, *size)."""
    return np.random.default_rng(seed).integers(1, 255, (count, *size), np.uint8)


def h5(path, **arrays):
    """An HDF5 file of arrays, as h5py writes it without being told more."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
    return path


def authors_part(folder, part, count, seed=0):
    """``depth_train.h5`` or ``depth_test.h5``; returns images (N, H, W, 3) and bytes of inverse depth (N, H, W, 1)."""
    images, depths = noise_images(count, (*SIZE, 3), seed), depth_bytes(count, seed=seed)[..., None]
    h5(folder / f"depth_{part}.h5", image=images, depth=depths)
    return images, depths


def published_nyu(folder, train, test, count):
    """The labelled set as it is published; returns images (N, H, W, 3) and depths (N, H, W) in metres."""
    images = noise_images(count, (*SIZE, 3))
    depths = np.random.default_rng(1).uniform(0.7, 10, (count, *SIZE)).astype(np.float32)
    h5(folder / "nyu_depth_v2_labeled.mat", images=images.transpose(0, 3, 2, 1), depths=depths.transpose(0, 2, 1))
    numbers = {"trainNdxs": train, "testNdxs": test}
    scipy.io.savemat(
        folder / "splits.mat", {key: np.array(rows, np.float64)[:, None] + 1 for key, rows in numbers.items()}
    )
    return images, depths


def small_nyu(path, train=(0, 1, 4, 5, 6, 9), test=(2, 3, 7, 8), **other):
    """The labelled set made smaller, ten scenes in steps of 0.04 m; `other` arrays are in place of its own."""
    count = 10
    arrays = {
        "rgb": noise_images(count, (*SIZE, 3)),
        "depth": depth_bytes(count),
        "depth_scale_m": np.float32(0.04),
        "train_idx": np.array(train, np.int16),
        "test_idx": np.array(test, np.int16),
    } | other
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return arrays


def road(folder, files, size=(6, 8)):
    """PNG or JPEG files of one colour each: the file at place n has colour 10 n everywhere."""
    for place, file in enumerate(files):
        image_file(folder / file, np.full((*size, 3), 10 * place, np.uint8))
