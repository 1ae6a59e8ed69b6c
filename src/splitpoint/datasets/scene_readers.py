"""The files of sets of scenes: HDF5 as Amini et al. (2020) wrote it, the labelled NYU set, npz, folders of photographs.

Every reader takes the entry of the set, where it lies, and the part (``train`` or ``test``) and returns a `SceneSet`;
files that are something else are a DataError.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from splitpoint.datasets.arrays import not_the_format, package, present, read_npz
from splitpoint.datasets.blocks import blocks, runs
from splitpoint.datasets.bounded import DAMAGED
from splitpoint.datasets.depth_scale import InverseBytes, Metres, Steps
from splitpoint.datasets.entry import SceneEntry
from splitpoint.datasets.image_set import pillow
from splitpoint.datasets.scene_set import Depths, PhotographFiles, Rows, SceneSet, StoredPhotographs
from splitpoint.errors import DataError

BLOCK = 100
"""Consecutive images that stay together where a file does not say which scene they show."""

SUFFIXES = (".jpeg", ".jpg", ".png")


# HDF5


@final
@dataclass(frozen=True)
class H5Rows:
    """Rows of one array of an HDF5 file, read when they are asked for; the file is open only meanwhile.

    With `swapped` the axes after the first are reversed, which is how MATLAB's arrays come.
    """

    path: Path
    key: str
    shape: tuple[int, ...]
    swapped: bool = False

    def __getitem__(self, rows: NDArray[np.int64], /) -> NDArray[Any]:
        """The `rows` in their order; neighbours in the file are read together."""
        wanted, back = np.unique(rows, return_inverse=True)
        try:
            with _h5py().File(self.path, "r") as file:
                array = file[self.key]
                pieces = [array[run[0] : run[-1] + 1] for run in _consecutive(wanted)]
                found: NDArray[Any] = np.concatenate(pieces) if pieces else array[:0]
        except (OSError, KeyError, RuntimeError) as error:
            raise DataError(
                f"Expected rows of {self.key} in {self.path}, but they cannot be read ({error}); "
                "put the file there again."
            ) from error
        found = found[back]
        return found.transpose(0, *range(found.ndim - 1, 0, -1)) if self.swapped else found


def _consecutive(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Ascending `rows` cut where one is left out."""
    return np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []


def _h5py() -> Any:
    return package("h5py", "reads HDF5 files", "images")


def _h5_array(
    entry: SceneEntry, path: Path, key: str, tail: tuple[int | None, ...], kind: str, swapped: bool = False
) -> H5Rows:
    """The array `key` of a file; DataError unless it is (N, *tail) of the `kind`, where None is any length."""
    expected = f"an array {key} of {kind} and shape (N, {', '.join('any' if n is None else str(n) for n in tail)})"
    present(entry, path)
    reader = _h5py()
    try:
        with reader.File(path, "r") as file:
            shape, dtype = tuple(file[key].shape), file[key].dtype
    except (AttributeError, *DAMAGED) as error:
        raise not_the_format(entry, path, expected, f"it cannot be read ({error})") from error
    fits = len(shape) == 1 + len(tail) and all(n in (None, m) for n, m in zip(tail, shape[1:], strict=True))
    if not fits or dtype != np.dtype(kind) or 0 in shape:
        raise not_the_format(entry, path, expected, f"it is {dtype} of shape {shape}")
    return H5Rows(path, key, shape, swapped)


def authors_h5(entry: SceneEntry, folder: Path, part: str) -> SceneSet:
    """``depth_train.h5`` and ``depth_test.h5``: `image` uint8 (N, H, W, 3) and `depth` uint8 (N, H, W, 1).

    The depth is inverse, ``255 / metres``. Rows come place by place, but nothing says where one ends.
    """
    path = folder / f"depth_{part}.h5"
    images = _h5_array(entry, path, "image", (None, None, 3), "uint8")
    depths = _h5_array(entry, path, "depth", (*images.shape[1:3], 1), "uint8")
    _same_length(entry, path, image=images.shape[0], depth=depths.shape[0])
    return _stored(entry, images, images.shape, Depths(depths, InverseBytes()), part)


def images_h5(entry: SceneEntry, path: Path, part: str) -> SceneSet:
    """One file with `image` uint8 (N, H, W, 3); its other arrays, disparities of no known scale, are not read."""
    images = _h5_array(entry, path, "image", (None, None, 3), "uint8")
    return _stored(entry, images, images.shape, None, part)


def nyu_mat(entry: SceneEntry, folder: Path, part: str) -> SceneSet:
    """The labelled set as it is published: ``nyu_depth_v2_labeled.mat`` (MATLAB 7.3) and ``splits.mat`` (MATLAB 5).

    The first has `images` (1449, 3, 640, 480) in bytes and `depths` (1449, 640, 480) in metres, seen from HDF5; the
    second `trainNdxs` and `testNdxs`, numbers from 1.
    """
    path = folder / "nyu_depth_v2_labeled.mat"
    images = _h5_array(entry, path, "images", (3, None, None), "uint8", swapped=True)
    count, _, width, height = images.shape
    depths = _h5_array(entry, path, "depths", (width, height), "float32", swapped=True)
    _same_length(entry, path, images=count, depths=depths.shape[0])
    rows = _split_rows(entry, folder / "splits.mat", part, count)
    found = _stored(entry, images, (count, height, width, 3), Depths(depths, Metres()), part)
    return _official(found, rows)


def _split_rows(entry: SceneEntry, path: Path, part: str, count: int) -> NDArray[np.int64]:
    scipy = package("scipy.io", "reads MATLAB files", "images")
    key = "trainNdxs" if part == "train" else "testNdxs"
    try:
        numbers = scipy.loadmat(present(entry, path), variable_names=(key,))[key].reshape(-1)
    except DataError:
        raise
    except Exception as error:  # SciPy raises whatever a damaged file makes it stumble over
        raise not_the_format(entry, path, f"row numbers {key}", f"it cannot be read ({error})") from error
    return _row_numbers(entry, path, key, numbers.astype(np.int64) - 1, count)


# Arrays


def nyu_npz(entry: SceneEntry, path: Path, part: str) -> SceneSet:
    """The labelled set made smaller: `rgb` uint8 (N, H, W, 3) and `depth` uint8 (N, H, W), steps of `depth_scale_m` m.

    `train_idx` and `test_idx` are the rows of the official split, from 0.
    """
    arrays = read_npz(entry, path, ("rgb", "depth", "depth_scale_m", "train_idx", "test_idx"))
    images, depths = _rgb(entry, path, arrays["rgb"]), arrays["depth"]
    if depths.shape != images.shape[:3] or depths.dtype != np.uint8:
        expected = f"an array depth of uint8 and shape {images.shape[:3]}"
        raise not_the_format(entry, path, expected, f"it is {depths.dtype} of shape {depths.shape}")
    step = arrays["depth_scale_m"]
    if step.shape != () or not step > 0:
        raise not_the_format(entry, path, "one number depth_scale_m above 0", f"it is {step}")
    rows = _row_numbers(entry, path, f"{part}_idx", arrays[f"{part}_idx"], len(images))
    return _official(_stored(entry, images, images.shape, Depths(depths, Steps(float(step))), part), rows)


def named_npz(entry: SceneEntry, path: Path, part: str) -> SceneSet:
    """Photographs `rgb` uint8 (N, H, W, 3) with the `name` (N,) of the published file of each."""
    arrays = read_npz(entry, path, ("rgb", "name"))
    images, names = _rgb(entry, path, arrays["rgb"]), arrays["name"]
    if names.shape != images.shape[:1] or names.dtype.kind != "U":
        raise not_the_format(entry, path, f"{len(images)} names", f"name is {names.dtype} of shape {names.shape}")
    found = _stored(entry, images, images.shape, None, part)
    return _named(found, [str(name) for name in names])


# Folders


def photographs(entry: SceneEntry, folder: Path, _: str) -> SceneSet:
    """JPEG and PNG files that the patterns of the form find below the folder, sorted; decoded when asked for."""
    patterns = entry.form_at(folder).checksums
    ways = {path for pattern in patterns for path in folder.glob(pattern) if path.suffix.lower() in SUFFIXES}
    files = sorted(path.relative_to(folder).as_posix() for path in ways if not path.name.startswith("."))
    if not files:
        raise not_the_format(entry, folder, f"images {' or '.join(patterns)}", "it has none")
    first = folder / files[0]
    try:
        with pillow().open(first) as image:
            width, height = image.size
    except OSError as error:
        raise not_the_format(entry, first, "an image", f"it cannot be read ({error})") from error
    source = PhotographFiles(entry.name, folder, tuple(files), (height, width))
    places = torch.arange(len(files))
    return _named(SceneSet(entry.name, source, None, places, tuple(files), source.size, places), files)


# What the readers share


def _stored(entry: SceneEntry, images: Rows, shape: tuple[int, ...], depths: Depths | None, part: str) -> SceneSet:
    """All rows of an array, in blocks."""
    count, size = shape[0], (shape[1], shape[2])
    names = tuple(f"{part}/{row:05d}" for row in range(count))
    return SceneSet(
        entry.name, StoredPhotographs(images, size), depths, blocks(count, BLOCK), names, size, torch.arange(count)
    )


def _official(whole: SceneSet, rows: NDArray[np.int64]) -> SceneSet:
    """The `rows` of the labelled NYU set that are one part: where a number is left out, another scene begins."""
    part = whole.at(torch.from_numpy(rows))
    names = tuple(f"{row + 1:05d}" for row in rows.tolist())
    return replace(part, groups=runs(part.rows), names=names)


def _named(whole: SceneSet, names: Sequence[str]) -> SceneSet:
    """Images whose names say of which recording they are: their folder, and what stands before the first underscore."""
    recordings = [(os.path.dirname(name), os.path.basename(name).partition("_")[0]) for name in names]
    numbers = {recording: number for number, recording in enumerate(dict.fromkeys(recordings))}
    return replace(whole, groups=torch.tensor([numbers[each] for each in recordings]), names=tuple(names))


def _rgb(entry: SceneEntry, path: Path, images: NDArray[Any]) -> NDArray[np.uint8]:
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not images.size:
        got = f"it is {images.dtype} of shape {images.shape}"
        raise not_the_format(entry, path, "an array rgb of uint8 and shape (N, H, W, 3)", got)
    return images


def _row_numbers(entry: SceneEntry, path: Path, key: str, numbers: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Ascending row numbers of one part; DataError if they are none, or one is not of the set or there twice."""
    rows = np.unique(numbers)
    good = numbers.ndim == 1 and numbers.dtype.kind in "iu" and 0 < len(rows) == len(numbers)
    if not good or rows[0] < 0 or rows[-1] >= count:
        raise not_the_format(entry, path, f"different row numbers {key} of {count} images", "they are something else")
    return rows.astype(np.int64)


def _same_length(entry: SceneEntry, path: Path, **lengths: int) -> None:
    if len(set(lengths.values())) > 1:
        got = " and ".join(f"{count} {key}" for key, count in lengths.items())
        raise not_the_format(entry, path, f"a row of {' and '.join(lengths)} for each scene", f"it has {got}")
