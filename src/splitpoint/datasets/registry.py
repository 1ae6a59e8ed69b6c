"""Every data set that can be had: where it lies, where it comes from, what it must be, and its licence.

Addresses and checksums stand in one table, `SETS`. The checksum of a source belongs to the file as it is downloaded.
The UCI archives have none here: nobody publishes one, and an archive that is packed anew would change it. What is
verified instead is the content, the converted arrays against the checksums in `uci.TABLES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from splitpoint.datasets import uci
from splitpoint.datasets.folders import command_for
from splitpoint.errors import SettingsError


@dataclass(frozen=True)
class Source:
    """One file to download and its checksum (``kind:value``), empty where only the content can be verified."""

    url: str
    checksum: str = ""

    @property
    def file_name(self) -> str:
        """Last part of the address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Other:
    """What another form of a set must be: `content` as in `Entry`, and its `size` where it is only a part."""

    content: Mapping[str, str]
    size: str = ""


@dataclass(frozen=True)
class Entry:
    """One data set below a data folder.

    `form` says how sources become the set: ``table`` is read by `raw` and stored as in `uci`; ``idx`` are four files of
    the MNIST format that become one npz; ``tar`` is an archive whose `content` is unpacked; ``folder`` is a tar or zip
    archive of a folder with folders in it; ``plain`` files stay as they are. `content` has the checksums of arrays of
    an npz or of files in a folder, and is empty for a table; ``files:N`` is how many files a pattern must find.

    `others` are further places and forms in which the set is read. A set without `sources` cannot be downloaded, and
    `by_hand` is the clause that says how to get it.
    """

    path: str
    size: str
    form: Literal["table", "idx", "tar", "folder", "plain"]
    sources: tuple[Source, ...]
    licence: str
    content: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Other] = field(default_factory=dict)
    by_hand: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every place below a data folder where the set may lie, the preferred one first."""
        return (self.path, *self.others)

    def content_at(self, path: Path) -> Mapping[str, str]:
        """What must be in the set that lies at `path`."""
        other = self._other(path)
        return self.content if other is None else other.content

    def size_at(self, path: Path | None) -> str:
        """Size of what lies at `path`, or of the set where nothing does."""
        other = None if path is None else self._other(path)
        return (other and other.size) or self.size

    def _other(self, path: Path) -> Other | None:
        return next((found for place, found in self.others.items() if path.match(place)), None)


_UCI = "https://archive.ics.uci.edu/static/public"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_HENDRYCKS = "https://people.eecs.berkeley.edu/~hendrycks"
_MNIST_ARRAYS = {
    "x_train": "sha256:741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
    "y_train": "sha256:1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    "x_test": "sha256:6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    "y_test": "sha256:ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
}
_FASHION_ARRAYS = {
    "x_train": "sha256:2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
    "y_train": "sha256:657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    "x_test": "sha256:c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    "y_test": "sha256:3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
}


def _table(name: str, url: str, licence: str = "CC BY 4.0") -> Entry:
    expected = uci.TABLES[name]
    size = f"{expected.rows:,} x {expected.features}"
    return Entry(uci.path_of(name), size, "table", (Source(url),), licence)


SETS: dict[str, Entry] = {
    "boston": _table("boston", "https://lib.stat.cmu.edu/datasets/boston", "none stated"),
    "concrete": _table("concrete", f"{_UCI}/165/concrete+compressive+strength.zip"),
    "energy": _table("energy", f"{_UCI}/242/energy+efficiency.zip"),
    "kin8nm": _table("kin8nm", "https://www.openml.org/data/download/3626/dataset_2175_kin8nm.arff", "none stated"),
    "naval": _table("naval", f"{_UCI}/316/condition+based+maintenance+of+naval+propulsion+plants.zip"),
    "power": _table("power", f"{_UCI}/294/combined+cycle+power+plant.zip"),
    "protein": _table("protein", f"{_UCI}/265/physicochemical+properties+of+protein+tertiary+structure.zip"),
    "wine": _table("wine", f"{_UCI}/186/wine+quality.zip"),
    "yacht": _table("yacht", f"{_UCI}/243/yacht+hydrodynamics.zip"),
    "mnist": Entry(
        "mnist.npz",
        "70,000 x 28 x 28",
        "idx",
        (
            Source(f"{_MNIST}/train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            Source(f"{_MNIST}/train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432"),
            Source(f"{_MNIST}/t10k-images-idx3-ubyte.gz", "md5:9fb629c4189551a2d022fa330f9573f3"),
            Source(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", "md5:ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        "none stated",
        _MNIST_ARRAYS,
        {"mnist": Other(_MNIST_ARRAYS), "MNIST/raw": Other(_MNIST_ARRAYS)},
    ),
    "fashion_mnist": Entry(
        "fashion_mnist.npz",
        "70,000 x 28 x 28",
        "idx",
        (
            Source(f"{_FASHION}/train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Source(f"{_FASHION}/train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe"),
            Source(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79"),
            Source(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        "MIT",
        _FASHION_ARRAYS,
        {"fashion_mnist": Other(_FASHION_ARRAYS), "FashionMNIST/raw": Other(_FASHION_ARRAYS)},
    ),
    "cifar10": Entry(
        "cifar-10-batches-bin",
        "60,000 x 32 x 32 x 3",
        "tar",
        (Source(f"{_CIFAR}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
        "none stated",
        {
            "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        {
            "cifar-10-batches-py": Other(
                {
                    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
                    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
                    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
                    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
                    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
                    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
                }
            ),
        },
    ),
    "cifar100": Entry(
        "cifar-100-binary",
        "60,000 x 32 x 32 x 3",
        "tar",
        (Source(f"{_CIFAR}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),),
        "none stated",
        {"train.bin": "size:153700000", "test.bin": "size:30740000"},
        {
            "cifar-100-python": Other(
                {"train": "md5:16019d7e3df5f24257cddd939b257f8d", "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"}
            ),
        },
    ),
    "svhn": Entry(
        "svhn",
        "99,289 x 32 x 32 x 3",
        "plain",
        (
            Source(f"{_SVHN}/train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
            Source(f"{_SVHN}/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
        ),
        "non-commercial use",
        {
            "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    "notmnist": Entry(
        "notMNIST_small",
        "18,726 x 28 x 28",
        "folder",
        (Source("http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz", "size:8458043"),),
        "none stated",
        {"[A-J]/*.png": "files:18726"},
        {
            "notmnist.npz": Other(
                {
                    "x_test": "sha256:6bda48464effe4169d9cd068967cd81a717ae2f925ddb55fd71025e23022ee9a",
                    "y_test": "sha256:cbf49d96931f5bf9ec86d14ed2f729c2870d4f9b406729e43c68d3748a345369",
                },
                "10,000 x 28 x 28",
            ),
        },
    ),
    "tiny_imagenet": Entry(
        "tiny-imagenet-200",
        "110,000 x 64 x 64 x 3",
        "folder",
        (Source("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de"),),
        "none stated",
        {
            "wnids.txt": "files:1",
            "train/*/images/*.JPEG": "files:100000",
            "val/val_annotations.txt": "files:1",
            "val/images/*.JPEG": "files:10000",
        },
        {
            "tiny_imagenet_val_32.npz": Other(
                {
                    "x": "sha256:f488ad442fb8d9b2fbe9a3b8a90dc53b4dc69a8aea18573caf33ef6bcf1b1191",
                    "y": "sha256:a6d0aa8d4df540f2af8c5506c471ed46dafa4e874e00f46cc8000022336ccfd4",
                },
                "10,000 x 32 x 32 x 3",
            ),
        },
    ),
    "imagenet": Entry(
        "imagenet",
        "1,331,167 pictures",
        "folder",
        (),
        "by agreement, non-commercial",
        {"train/n*/*.JPEG": "files:1281167", "val/n*/*.JPEG": "files:50000"},
        by_hand=(
            "accept its licence at image-net.org and put its pictures into imagenet/train/WNID and imagenet/val/WNID "
            "below a folder of SPLITPOINT_DATA, one folder for each class"
        ),
    ),
    "imagenet_a": Entry(
        "imagenet-a",
        "7,500 pictures",
        "folder",
        (Source(f"{_HENDRYCKS}/imagenet-a.tar", "md5:c3e55429088dc681f30d81f4726b6595"),),
        "MIT",
        {"n*/*.jpg": "files:7500"},
    ),
    "imagenet_o": Entry(
        "imagenet-o",
        "2,000 pictures",
        "folder",
        (Source(f"{_HENDRYCKS}/imagenet-o.tar", "md5:86bd7a50c1c4074fb18fc5f219d6d50b"),),
        "MIT",
        {"n*/*.JPEG": "files:2000"},
    ),
}
"""The sets by name."""


def entry(name: str) -> Entry:
    """The entry `name` of `SETS`; another name is a SettingsError."""
    if name not in SETS:
        raise SettingsError(f"Expected a data set among {', '.join(SETS)}, but got {name!r}.")
    return SETS[name]


def entries(names: Iterable[str]) -> dict[str, Entry]:
    """Entries by name, all of them where no name is given."""
    return {name: entry(name) for name in names} or dict(SETS)


def cure(name: str) -> str:
    """The clause that says how to get the set: a command, or what to do by hand."""
    return entry(name).by_hand or f"get it again with: {command_for(name)}"
