"""Bad files and addresses for the readers of data sets, and random mutations of good files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from hostile_inputs import Case
from image_files import idx, labels_of, noise_images, python2_pickle
from splitpoint.datasets import SETS, image_readers, tables
from splitpoint.datasets.arrays import read_idx, read_npz
from splitpoint.datasets.bounded import npy_array
from splitpoint.datasets.download import _by_name, _by_pattern, _check_address, _unpack, fetch
from splitpoint.datasets.luma import _array
from splitpoint.errors import DataError

CIFAR, LUMA = SETS["cifar10"], SETS["luma"]
BATCH = {
    b"batch_label": b"one",
    b"labels": [0, 1],
    b"filenames": [b"a", b"b"],
    b"data": noise_images(2, (3, 32, 32)).reshape(2, -1),
}
TEXTS = {key.decode(): value for key, value in BATCH.items()}


def batches() -> list[bytes]:
    """Good batches of CIFAR in every protocol."""
    return [
        python2_pickle(BATCH),
        *(pickle.dumps(table, protocol) for table in (BATCH, TEXTS) for protocol in (2, 3, 4, 5)),
    ]


def read_file(name: str, content: bytes, reader: Callable[[Path], Any]) -> Any:
    """What a reader makes of a file with this content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return reader(path)


def read_cifar(content: bytes) -> Any:
    return read_file("test_batch", content, lambda path: image_readers.cifar10_batches(CIFAR, path.parent, "test"))


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def header(shape: str, kind: str = "'<f8'") -> bytes:
    """An npy file that claims a shape, with eight bytes in it."""
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(8)


def zip_of(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


def patched(content: bytes, offsets: tuple[int, int], value: int) -> bytes:
    """A zip file with a number of two bytes set in the header of its only member and in the directory."""
    changed = bytearray(content)
    for mark, offset in ((b"PK\x03\x04", offsets[0]), (b"PK\x01\x02", offsets[1])):
        place = content.index(mark) + offset
        changed[place : place + 2] = struct.pack("<H", value)
    return bytes(changed)


def encrypted(content: bytes) -> bytes:
    return patched(content, (6, 8), 1)


def unknown_method(content: bytes) -> bytes:
    return patched(content, (8, 10), 97)


def claiming(content: bytes) -> bytes:
    """A zip file whose member claims four gigabytes in the directory."""
    changed = bytearray(content)
    place = content.index(b"PK\x01\x02") + 24
    changed[place : place + 4] = struct.pack("<I", 0xFFFFFF00)
    return bytes(changed)


def tar_of(*members: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(Path(tempfile.gettempdir()) / "splitpoint-evil"),)


def cifar_cases() -> Iterator[Case]:
    good = batches()
    for number, content in enumerate(good):
        yield Case(f"CIFAR good {number}", partial(read_cifar, content), lambda found: found.labels.tolist() == [0, 1])
    first = BATCH[b"data"]
    wrong: dict[str, Any] = {
        "object array": {**BATCH, b"data": np.array([[object()]])},
        "code": {**BATCH, b"data": Evil()},
        "floats": {**BATCH, b"data": first.astype(float)},
        "columns": {**BATCH, b"data": np.asfortranarray(first)},
        "flat": {**BATCH, b"data": first.ravel()},
        "narrow": {**BATCH, b"data": first[:, :3071]},
        "labels few": {**BATCH, b"labels": [0]},
        "labels texts": {**BATCH, b"labels": ["a", "b"]},
        "labels large": {**BATCH, b"labels": [0, 10**400]},
        "labels class": {**BATCH, b"labels": [0, 10]},
        "labels truth": {**BATCH, b"labels": [True, False]},
        "no labels": {b"data": first},
        "a list": [1, 2],
        "a number": 3,
        "nothing": None,
        "labels of a set": {**BATCH, b"labels": {0, 1}},
        "lists": {**BATCH, b"data": first.tolist()},
    }
    for what, table in wrong.items():
        for protocol in (2, 4, 5):
            yield Case(f"CIFAR {what} {protocol}", lambda t=table, p=protocol: read_cifar(pickle.dumps(t, p)))
    raw = {
        "empty": b"",
        "one byte": b"\x80",
        "stop": b".",
        "nonsense": b"hello world",
        "cut": good[0][:-900],
        "mark": b"\x80\x02(.",
        "system": b"cos\nsystem\n(S'true'\ntR.",
        "memo": b"\x80\x02h\x05.",
        "huge bytes": b"\x80\x04\x8e" + b"\xff" * 8 + b"a.",
        "huge text": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.",
        "build": b"\x80\x02}}b.",
        "reduce": b"\x80\x02}}R.",
        "self": b"\x80\x02]q\x00h\x00a.",
        "persistent": b"\x80\x02Pabc\n.",
        "extension": b"\x80\x02\x82\x01.",
        "many": b"\x80\x02" + b"0N" * 5000 + b".",
        "int line": b"I" + b"9" * 9000 + b"\n.",
        "setitems": b"\x80\x02](K\x01K\x02u.",
        "key": b"\x80\x02}K\x01K\x02s.",
    }
    for what, content in raw.items():
        yield Case(f"CIFAR raw {what}", partial(read_cifar, content))


def array_cases() -> Iterator[Case]:
    entry = SETS["notmnist"]
    numbers = np.arange(6.0)
    read = lambda content: read_file("a.npz", content, lambda path: read_npz(entry, path, ("x_test",)))  # noqa: E731
    plain = zip_of(("x_test.npy", header("(1,)")))
    files = {
        "empty": b"",
        "no zip": b"hello",
        "another key": npz(y=numbers),
        "cut": npz(x_test=numbers)[:-40],
        "objects": npz(x_test=np.array([None, {}])),
        "terabytes": zip_of(("x_test.npy", header("(1000000000000,)"))),
        "overflow": zip_of(("x_test.npy", header("(10**9, 10**9, 10**9)"))),
        "negative": zip_of(("x_test.npy", header("(-1, -1)"))),
        "fewer": zip_of(("x_test.npy", header("(2,)"))),
        "no shape": zip_of(("x_test.npy", header("'a'"))),
        "code": zip_of(("x_test.npy", header("__import__('os').getcwd()"))),
        "object type": zip_of(("x_test.npy", header("(1,)", "'|O'"))),
        "unknown type": zip_of(("x_test.npy", header("(1,)", "'zz'"))),
        "not npy": zip_of(("x_test.npy", b"text")),
        "encrypted": encrypted(plain),
        "unknown method": unknown_method(plain),
        "claims": claiming(plain),
        "version": zip_of(("x_test.npy", b"\x93NUMPY\x09\x09" + bytes(99))),
        "deflated claims": claiming(zip_of(("x_test.npy", header("(1,)")), method=zipfile.ZIP_DEFLATED)),
    }
    for what, content in files.items():
        yield Case(f"npz {what}", partial(read, content))
        single = content if what in ("empty", "no zip") else None
        yield Case(
            f"table {what}",
            partial(read_file, "a.zip", content, lambda path: list(tables.candidates(SETS["yacht"], path))),
        )
        if single is not None:
            yield Case(f"npy {what}", partial(read_file, "a.npy", single, lambda path: _array(LUMA, path)))
    for what, content in {
        "terabytes": header("(10**12, 4)"),
        "objects": header("(1,)", "'|O'"),
        "flat": header("(1,)"),
    }.items():
        yield Case(f"npy {what}", partial(read_file, "a.npy", content, lambda path: _array(LUMA, path)))
    yield Case(
        "npy good", partial(read_file, "a.npy", header("(1,)"), npy_array), lambda found: found.tolist() == [0.0]
    )
    image = noise_images(2, (28, 28))
    bomb = gzip.compress(idx(image[:1])[:4] + struct.pack(">3I", 10**6, 10**3, 10**3) + bytes(10**6))
    idxs = {
        "empty": b"",
        "short": b"\0\0",
        "other type": b"\0\0\x0d\x01" + bytes(8),
        "cut": idx(image)[:-1],
        "long": idx(image) + b"a",
        "terabytes": b"\0\0\x08\x03" + b"\xff" * 12,
        "axes": b"\0\0\x08\xff" + bytes(20),
        "gzip cut": gzip.compress(idx(image))[:-9],
        "gzip head": b"\x1f\x8b" + bytes(20),
        "gzip bomb": bomb,
        "gzip long": gzip.compress(idx(image) + b"a"),
        "gzip short": gzip.compress(b"\0\0"),
        "gzip flipped": flipped(gzip.compress(idx(image))),
    }
    for what, content in idxs.items():
        yield Case(f"idx {what}", partial(read_file, "a", content, read_idx))
    for packed in (idx(image), gzip.compress(idx(image))):
        yield Case(
            f"idx good {len(packed)}",
            partial(read_file, "a", packed, lambda path: read_idx(path).copy()),
            lambda found: np.array_equal(found, image),
        )
    for what, content in {
        "empty": b"",
        "nonsense": b"MATLAB",
        "cut": b"MATLAB 5.0 MAT-file".ljust(126) + b"\x00\x01IM",
    }.items():
        yield Case(
            f"mat {what}",
            lambda c=content: read_file(
                "test_32x32.mat", c, lambda path: image_readers.svhn_mat(SETS["svhn"], path.parent, "test")
            ),
        )


def flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 0xFF
    return bytes(changed)


def archive_cases() -> Iterator[Case]:
    names = {
        "empty name": "",
        "dot": ".",
        "up": "../train.bin",
        "absolute": "/etc/train.bin",
        "long": "imagenet-o/n01/" + "a" * 300 + ".JPEG",
        "null": "imagenet-o/n01/a\0.JPEG",
        "deep up": "imagenet-o/n01/../../../evil.JPEG",
    }
    for name, place in (("cifar100", _by_name), ("imagenet_o", _by_pattern)):
        entry = SETS[name]
        for what, member in names.items():
            for pack in (tar_of, zip_of) if member else (tar_of,):
                yield Case(
                    f"archive {name} {what} {pack.__name__}",
                    partial(unpacked, entry, place, lambda m=member, p=pack: p((m, b"x"))),
                )
        plain = zip_of(("imagenet-o/n01/a.JPEG", b"x" * 100))
        for what, content in {
            "empty": b"",
            "nonsense": b"abc",
            "encrypted": encrypted(plain),
            "unknown method": unknown_method(plain),
            "claims": claiming(plain),
            "gzip of nothing": gzip.compress(b""),
            "xz": b"\xfd7zXZ\x00" + bytes(40),
            "bz2": b"BZh9" + bytes(40),
            "tar cut": tar_of(("a", b"x" * 5000))[:60],
        }.items():
            yield Case(f"archive {name} {what}", partial(unpacked, entry, place, lambda c=content: c))


def unpacked(entry: Any, place: Any, made: Callable[[], bytes]) -> Any:
    """Unpack an archive and look that nothing lies outside its folder."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "archive").write_bytes(made())
        try:
            return (
                _unpack(entry, root / "archive", root / "in" / "target", place)
                if (root / "in").mkdir() is None
                else None
            )
        finally:
            left = {path.name for path in root.rglob("*")} - {"archive", "in"}
            assert not left, left


def address_cases() -> Iterator[Case]:
    destination = Path(tempfile.gettempdir()) / "splitpoint-nothing"
    for address in (
        "file:///etc/passwd",
        "ftp://example.org/a",
        "data:text/plain,hello",
        "http://example.org/a",
        "example.org/a",
        "",
        "https://",
        "HTTP://example.org/a",
        "jar:https://example.org",
        "//example.org/a",
        "http://127.0.0.1.example.org/a",
        "http://[::1/a",
        "javascript:alert(1)",
    ):
        yield Case(f"fetch {address}", partial(fetch, address, destination, progress=False))
    for checksum in ("", "size:5", "crc:1"):
        yield Case(
            f"fetch http checksum {checksum}",
            partial(fetch, "http://example.org/a", destination, checksum, progress=False),
        )
    for address, checksum in (
        ("https://example.org/a", ""),
        ("http://example.org/a", "md5:0"),
        ("http://localhost:9/a", ""),
    ):
        yield Case(f"address {address}", partial(_check_address, address, checksum), lambda found: found is None)


FILE_PARTS = (cifar_cases, array_cases, archive_cases, address_cases)


def mutated(content: bytes, random: Random) -> bytes:
    """Bytes changed, left out, put in or cut off, mostly where commands and headers are."""
    changed = bytearray(content)
    for _ in range(random.randint(1, 6)):
        size = max(len(changed), 1)
        place = random.choice(
            [random.randrange(min(400, size)), random.randrange(size), size - 1 - random.randrange(min(size, 200))]
        )
        kind = random.random()
        if kind < 0.5 and place < len(changed):
            changed[place] = random.randrange(256)
        elif kind < 0.7:
            del changed[place : place + random.randint(1, 9)]
        elif kind < 0.9:
            changed[place:place] = random.randbytes(random.randint(1, 9))
        else:
            del changed[place:]
    return bytes(changed)


def fuzzed(count: int, seed: int = 0) -> tuple[int, list[str]]:
    """Read so many mutated files: how many ended in an array or in one sentence, and what the others raised."""
    random = Random(seed)
    entry = SETS["notmnist"]
    image, label = noise_images(3, (28, 28)), labels_of(3, 10)
    kinds: list[tuple[bytes, Callable[[bytes], Any]]] = [(content, read_cifar) for content in batches()]
    kinds += [
        (
            npz(x_test=image, y_test=label),
            lambda c: read_file("a.npz", c, lambda p: read_npz(entry, p, ("x_test", "y_test"))),
        )
    ]
    kinds += [
        (packed, lambda c: read_file("a", c, lambda p: read_idx(p).sum()))
        for packed in (idx(image), gzip.compress(idx(image)))
    ]
    kinds += [
        (pack(("imagenet-o/n01/a.JPEG", b"x" * 2000)), lambda c: unpacked(SETS["imagenet_o"], _by_pattern, lambda: c))
        for pack in (zip_of, tar_of, partial(zip_of, method=zipfile.ZIP_DEFLATED))
    ]
    raised = []
    for _ in range(count):
        content, reader = random.choice(kinds)
        try:
            reader(mutated(content, random))
        except DataError:
            continue
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}"[:200])
    return count - len(raised), raised
