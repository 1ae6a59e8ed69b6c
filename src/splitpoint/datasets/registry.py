"""Every data set that can be had: where it lies, where it comes from, what it must be, and its licence.

Addresses and checksums stand in one table, `SETS`. The checksum of a source belongs to the file as it is downloaded.
The UCI archives have none here: nobody publishes one, and an archive that is packed anew would change it. What is
verified instead is the content, the converted arrays against the checksums in `uci.TABLES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from splitpoint.datasets import uci
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
class Entry:
    """One data set below a data folder.

    `form` says how sources become the set: ``table`` is read by `raw` and stored as in `uci`; ``idx`` are four files of
    the MNIST format that become one npz; ``tar`` is an archive whose `content` is unpacked; ``plain`` files stay as
    they are. `content` has the checksums of arrays of an npz or of files in a folder, and is empty for a table.
    """

    path: str
    size: str
    form: Literal["table", "idx", "tar", "plain"]
    sources: tuple[Source, ...]
    licence: str
    content: Mapping[str, str] = field(default_factory=dict)


_UCI = "https://archive.ics.uci.edu/static/public"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"


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
        {
            "x_train": "sha256:741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "y_train": "sha256:1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "x_test": "sha256:6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "y_test": "sha256:ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        },
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
        {
            "x_train": "sha256:2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "y_train": "sha256:657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "x_test": "sha256:c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "y_test": "sha256:3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        },
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
    ),
    "cifar100": Entry(
        "cifar-100-binary",
        "60,000 x 32 x 32 x 3",
        "tar",
        (Source(f"{_CIFAR}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),),
        "none stated",
        {"train.bin": "size:153700000", "test.bin": "size:30740000"},
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
