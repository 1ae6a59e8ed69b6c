"""The files of small picture sets: CIFAR's records and pickled batches, idx, npz and MATLAB files.

Every reader takes the name of the set, where it lies, and the part (``train`` or ``test``) and returns an `ImageSet`;
files that are something else are a DataError.
"""

from __future__ import annotations

import codecs
import gzip
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitpoint.datasets import npz
from splitpoint.datasets.folders import command_for
from splitpoint.datasets.image_set import ImageSet, Joined, Shape, StoredImages
from splitpoint.datasets.packages import package
from splitpoint.datasets.registry import cure
from splitpoint.errors import DataError

CIFAR: Shape = (3, 32, 32)
CIFAR10_FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
CIFAR100_FILES = {"train": ["train"], "test": ["test"]}
IDX_STEMS = {"train": "train", "test": "t10k"}


def cifar10_records(name: str, folder: Path, part: str) -> ImageSet:
    """CIFAR-10's binary version: records of one label byte and 3 x 32 x 32 pixel bytes."""
    return _in_a_row(name, [_records(name, folder / f"{file}.bin", 10, 1) for file in CIFAR10_FILES[part]])


def cifar100_records(name: str, folder: Path, part: str) -> ImageSet:
    """CIFAR-100's binary version: records of a coarse and a fine label byte (the fine one counts) and the pixels."""
    return _in_a_row(name, [_records(name, folder / f"{file}.bin", 100, 2) for file in CIFAR100_FILES[part]])


def _records(name: str, path: Path, classes: int, label_bytes: int) -> StoredImages:
    """One binary file, mapped into memory: only what is asked for is read."""
    length = label_bytes + int(np.prod(CIFAR))
    size = present(name, path).stat().st_size
    if size == 0 or size % length:
        raise not_the_format(name, path, f"records of {length} bytes", f"it has {size:,} bytes")
    records = np.memmap(path, np.uint8, "r").reshape(-1, length)
    return StoredImages(name, records[:, label_bytes:].reshape(-1, *CIFAR), records[:, label_bytes - 1], classes)


def cifar10_batches(name: str, folder: Path, part: str) -> ImageSet:
    """CIFAR-10's Python version: pickled dicts with `data` (n, 3072) and `labels`, read without running their code."""
    return _in_a_row(name, [_batch(name, folder / file, b"labels", 10) for file in CIFAR10_FILES[part]])


def cifar100_batches(name: str, folder: Path, part: str) -> ImageSet:
    """CIFAR-100's Python version: as CIFAR-10's, with `fine_labels`."""
    return _in_a_row(name, [_batch(name, folder / file, b"fine_labels", 100) for file in CIFAR100_FILES[part]])


def _batch(name: str, path: Path, labels: bytes, classes: int) -> StoredImages:
    with present(name, path).open("rb") as file:
        try:
            table = _ArraysOnly(file, encoding="bytes").load()
            pixels, numbers = np.asarray(table[b"data"]).reshape(-1, *CIFAR), np.asarray(table[labels], np.int64)
        except Exception as error:  # a damaged pickle raises whatever its last command happens to hit
            raise not_the_format(name, path, "a pickled batch of CIFAR", f"it cannot be read ({error})") from error
    return StoredImages(name, pixels, numbers, classes)


_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_PARTS_OF_ARRAYS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
}
"""Functions and classes by module and name, as pickled arrays of old and new versions of NumPy call them."""


class _ArraysOnly(pickle.Unpickler):
    """Unpickles what NumPy arrays are made of; any other class or function is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        """The allowed function or class, which the file names."""
        if (module, name) not in _PARTS_OF_ARRAYS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no part of an array")
        return _PARTS_OF_ARRAYS[module, name]


def _in_a_row(name: str, parts: Sequence[StoredImages]) -> ImageSet:
    return parts[0] if len(parts) == 1 else Joined(name, parts, parts[0].classes)


def idx_folder(name: str, folder: Path, part: str) -> ImageSet:
    """MNIST's format: ``train`` or ``t10k`` ``-images-idx3-ubyte`` and ``-labels-idx1-ubyte``, gzipped or not."""
    return _grey(name, folder, *idx_arrays(name, folder, part))


def idx_arrays(name: str, folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (N, H, W) and labels (N,) of one part in MNIST's format."""
    stem = IDX_STEMS[part]
    plain = (folder / f"{stem}-images-idx3-ubyte", folder / f"{stem}-labels-idx1-ubyte")
    found = [path if path.exists() else path.with_name(f"{path.name}.gz") for path in plain]
    pictures, labels = (read_idx(present(name, path)) for path in found)
    return pictures, labels


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Bytes of an idx file: two zeros, type 8, number of axes, their lengths (big-endian), the values.

    A gzipped file is unpacked, another one mapped into memory.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        data = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8) if zipped else np.memmap(path, np.uint8, "r")
        if data[:3].tobytes() != b"\0\0\x08":
            raise DataError("it begins otherwise")
        axes = int(data[3])
        shape = data[4 : 4 + 4 * axes].view(">u4")
        return data[4 + 4 * axes :].reshape(tuple(map(int, shape)))
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise DataError(
            f"Expected {path.name} to be an idx file of bytes, gzipped or not, but it is not ({error})."
        ) from error


def grey_npz(name: str, path: Path, part: str) -> ImageSet:
    """Arrays ``x_train``, ``y_train``, ``x_test``, ``y_test`` (or the test ones alone): uint8 (N, 28, 28) and (N,)."""
    arrays = npz.read(name, path, (f"x_{part}", f"y_{part}"))
    return _grey(name, path, arrays[f"x_{part}"], arrays[f"y_{part}"])


def _grey(name: str, path: Path, pictures: NDArray[Any], labels: NDArray[Any]) -> StoredImages:
    if pictures.shape[1:] != (28, 28):
        raise not_the_format(name, path, "pictures (N, 28, 28)", f"they have shape {pictures.shape}")
    return StoredImages(name, pictures[:, None], labels, 10)


def tiny_npz(name: str, path: Path, part: str) -> ImageSet:
    """Tiny ImageNet's validation pictures at 32 pixels: `x` uint8 (N, 32, 32, 3) and `y` (N,), classes by wnid."""
    if part != "test":
        raise DataError(
            f"Expected the folder tiny-imagenet-200 with the training pictures, but there is only {path}, "
            f"which holds the test part; get the whole set with: {command_for(name)}"
        )
    arrays = npz.read(name, path, ("x", "y"))
    if arrays["x"].shape[1:] != (32, 32, 3):
        raise not_the_format(name, path, "pictures (N, 32, 32, 3)", f"they have shape {arrays['x'].shape}")
    return StoredImages(name, arrays["x"].transpose(0, 3, 1, 2), arrays["y"], 200)


def svhn_mat(name: str, folder: Path, part: str) -> ImageSet:
    """SVHN's cropped digits in MATLAB's format 5: `X` (32, 32, 3, N) and `y` (N, 1), where 10 is the digit 0."""
    scipy = package("scipy.io", "reads MATLAB files", "images")
    path = present(name, folder / f"{part}_32x32.mat")
    try:
        table = scipy.loadmat(path, variable_names=("X", "y"))
        pictures, labels = table["X"], table["y"].reshape(-1)
    except Exception as error:  # SciPy raises whatever a damaged file makes it stumble over
        raise not_the_format(name, path, "a MATLAB file with X and y", f"it cannot be read ({error})") from error
    if pictures.ndim != 4 or pictures.shape[:3] != (32, 32, 3):
        raise not_the_format(name, path, "pictures (32, 32, 3, N)", f"they have shape {pictures.shape}")
    return StoredImages(name, pictures.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels), 10)


def present(name: str, path: Path) -> Path:
    """`path`; DataError if there is no such file."""
    if not path.is_file():
        raise DataError(f"Expected {name} to have a file {path.name}, but {path.parent} has none; {cure(name)}.")
    return path


def not_the_format(name: str, path: Path, expected: str, got: str) -> DataError:
    """The error that says that a file of the set is something else."""
    return DataError(f"Expected {path} to hold {expected}, but {got}; {cure(name)}.")
