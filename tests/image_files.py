"""Small image sets in the true formats of the large ones, written into a folder."""

import gzip
import io
import pickle
import struct
from typing import ClassVar

import numpy as np
from PIL import Image

from splitpoint.datasets.entry import VARIABLE


def noise_images(count, shape, seed=0):
    """Noise, uint8 (count, *shape)."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def labels_of(count, classes):
    """0, 1, ... over and over."""
    return np.arange(count) % classes


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


class Python2Pickler(pickle._Pickler):
    """Writes bytes as the `str` of Python 2, and NumPy's function under its name of that time, as CIFAR's files do."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, data):
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(data)

    dispatch[bytes] = save_bytes

    def save_text(self, text):
        self.save_bytes(text.encode("ascii"))

    dispatch[str] = save_text


def python2_pickle(value):
    stream = io.BytesIO()
    Python2Pickler(stream, 2).dump(value)
    return stream.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def cifar_batch(path, images, numbers, key=b"labels"):
    """A pickled batch of CIFAR."""
    data = {b"batch_label": b"a batch", key: numbers.tolist(), b"data": images.reshape(len(images), -1)}
    return write(path, python2_pickle(data))


def cifar_records(path, images, *numbers):
    """A binary batch of CIFAR: label bytes and pixels, image after image."""
    columns = [*(column[:, None].astype(np.uint8) for column in numbers), images.reshape(len(images), -1)]
    return write(path, np.hstack(columns).tobytes())


def idx(array):
    """Bytes of an idx file."""
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(folder, stem, images, numbers, zipped):
    """The two idx files of one part."""
    for kind, array in (("images-idx3", images), ("labels-idx1", numbers.astype(np.uint8))):
        data = gzip.compress(idx(array)) if zipped else idx(array)
        write(folder / f"{stem}-{kind}-ubyte{'.gz' if zipped else ''}", data)


def image_file(path, array):
    """A JPEG or PNG file of an array (H, W) or (H, W, 3), by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, "PNG" if path.suffix == ".png" else "JPEG", quality=95)
    return path


def wnids(count):
    """Names as WordNet numbers classes, sorted."""
    return [f"n{1440764 + 17 * number:08d}" for number in range(count)]


def tiny_imagenet(folder, per_class=1):
    """Tiny ImageNet with images of three of its 200 classes; returns the wnids in the order of the labels."""
    names = wnids(200)[::-1]
    write(folder / "wnids.txt", "\n".join(names).encode())
    lines = []
    for label in (0, 1, 199):
        for number in range(per_class):
            name = f"train/{names[label]}/images/{names[label]}_{number}.JPEG"
            image_file(folder / name, np.full((64, 64, 3), label, np.uint8))
        image_file(folder / f"val/images/val_{label}.JPEG", np.full((64, 64), label, np.uint8))
        lines.append(f"val_{label}.JPEG\t{names[label]}\t0\t32\t44\t62")
    write(folder / "val/val_annotations.txt", "\n".join(reversed(lines)).encode() + b"\n")
    return names


def imagenet(folder, sides=(300, 400)):
    """The 1,000 class folders of ImageNet-1K twice, with an image in the first and the last of them."""
    for part in ("train", "val"):
        for name in wnids(1000):
            (folder / part / name).mkdir(parents=True)
        for label in (0, 999):
            array = np.full((*sides, 3), label % 256, np.uint8)
            image_file(folder / part / wnids(1000)[label] / f"ILSVRC_{label}.JPEG", array)


def image_folder(folder, monkeypatch):
    """A data folder with MNIST (80 + 30 images), Fashion-MNIST (40 + 30), notMNIST (30) and CIFAR-10 (50 + 20)."""
    for number, (name, count) in enumerate((("mnist", 80), ("fashion_mnist", 40))):
        np.savez(
            folder / f"{name}.npz",
            x_train=noise_images(count, (28, 28), 10 + number),
            y_train=labels_of(count, 10),
            x_test=noise_images(30, (28, 28), 20 + number),
            y_test=labels_of(30, 10),
        )
    np.savez(folder / "notmnist.npz", x_test=noise_images(30, (28, 28), 30), y_test=labels_of(30, 10))
    for seed, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        count = 20 if name == "test_batch" else 10
        path = folder / "cifar-10-batches-bin" / f"{name}.bin"
        cifar_records(path, noise_images(count, (3, 32, 32), 40 + seed), labels_of(count, 10))
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder
