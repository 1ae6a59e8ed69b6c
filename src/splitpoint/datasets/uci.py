"""The nine UCI regression sets on which the paper reports intervals, checked to the byte when they are read.

A set is one file ``uci/NAME.npz`` in a folder of SPLITPOINT_DATA: `X` (N, D) and `y` (N,) in float64, and where the
set has two targets `y_all` (N, 2) beside `y`. The customary `y` of energy is rounded to two decimals, `y_all` is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitpoint.datasets import checksums, npz
from splitpoint.datasets.folders import command_for, find
from splitpoint.errors import DataError, SettingsError

Arrays = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Table:
    """What a set must be: its size, the names of its targets (`y` is the first) and checksums of its arrays.

    The checksum `rows` belongs to all columns with the rows sorted, so it is the same whatever their order.
    """

    rows: int
    features: int
    targets: tuple[str, ...]
    checksums: Mapping[str, str]

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays in the file."""
        return tuple(name for name in self.checksums if name != "rows")


TABLES: dict[str, Table] = {
    "boston": Table(
        506,
        13,
        ("price",),
        {
            "X": "sha256:58d9abef45a8e00c844d74ff0027c96d21a8a237d7ba7e4c0c30b11dcdafde10",
            "y": "sha256:a7a4a2bed7266f5e88acd2854ae97af5206bed564ab217810535d4cd14d76edb",
            "rows": "sha256:fd87e47646e384f7ff6c76ebe85c988b5690f797e804708235d3fecdfcb9ceb9",
        },
    ),
    "concrete": Table(
        1030,
        8,
        ("strength",),
        {
            "X": "sha256:c4f7f8fda5b3d88e68498336fd4c640b7c7215e13e58be2549e1d4251d005f26",
            "y": "sha256:6a51bf86903430946bc63cad7bd665ee89132a2bb413172e60b7afe14800f013",
            "rows": "sha256:8c783310fd89ef19bc357ea58acd280e5dca82f1afb70134a46347bc9fa6eb60",
        },
    ),
    "energy": Table(
        768,
        8,
        ("heating", "cooling"),
        {
            "X": "sha256:394f967b71ba5a86a0eec3d218a9bdba1d035895c4d9f2223dfd8d64f93258fe",
            "y": "sha256:79a552da5262251cc9509e6c184f84db3cf9a62a1a41e993b0023f2ba9a1fe22",
            "y_all": "sha256:5ff702c82dcc7e65533cb72c91738ada1c9eb41dc40b9d8a6691ee3a107829b5",
            "rows": "sha256:1bd8aa27f82891d256bf303f545cdefb426fd0c571d220001b571204cd41b3db",
        },
    ),
    "kin8nm": Table(
        8192,
        8,
        ("distance",),
        {
            "X": "sha256:40fe658abf608fb41492e445d8e89d3a5f5daeee62e29ebdac02f329f1cf6dff",
            "y": "sha256:a16dfbf651526e3e7a7543c7ba12c93e50ca2baecd284e62671fad99b9ea1fb4",
            "rows": "sha256:20d07850db8d874ed774aa79ff721947fd912b77b089c88322a2aeeb72801fd7",
        },
    ),
    "naval": Table(
        11934,
        16,
        ("compressor", "turbine"),
        {
            "X": "sha256:7206828144245475bf4d7620d12cea8378b4212866a7c9e94ab49a02a0402b8b",
            "y": "sha256:325f8fec7abe20a5df9a4767ae05c26576320c1df2f9d24b176e7a2941ed6e47",
            "y_all": "sha256:16fe57e604df3192d8b133cfa2a606653c9f05657b2076bd5152dda98cc2c7f6",
            "rows": "sha256:813b92f80bebbd8dac9f03e7169883cad9ba0784b15488143ecd3018742f0c6e",
        },
    ),
    "power": Table(
        9568,
        4,
        ("output",),
        {
            "X": "sha256:738126c94648654d3ac7514716695c19957f4bb8e8ecdff7b8a2c61ffb858bb7",
            "y": "sha256:b84c1488b08e6ec560bbabfc57013ca515259eaa0abc7dafec26b31a2c484424",
            "rows": "sha256:de02023f4e7f10d6743e3b661e4b02f0459e8d190e83ea3ed50e0e4fb414da4b",
        },
    ),
    "protein": Table(
        45730,
        9,
        ("rmsd",),
        {
            "X": "sha256:b191e61db326c95c38cbfdc8f963abd6a78018de5b3dcac60f2f9112859abd06",
            "y": "sha256:3c467e6bbcc4f151c7f8536c1296b4513035b83e7bdc3464e57b7dc4b0264d95",
            "rows": "sha256:af0581c414e994d6cf8d18aa192fed5cc1bc9ab6850da8b7cc5be665bd711b19",
        },
    ),
    "wine": Table(
        1599,
        11,
        ("quality",),
        {
            "X": "sha256:9f40e7499030fb1aebbaed39a614fdac96d1c997b6abad2502f6386d1734ed9b",
            "y": "sha256:857552cf21124c681133662195ef3c2115025105d510d53a2929ca0c4907f097",
            "rows": "sha256:38163c20a38e90b64b2b1f53db0d42f6eb9d17544e445aafface00ade255a266",
        },
    ),
    "yacht": Table(
        308,
        6,
        ("resistance",),
        {
            "X": "sha256:cfee469bd75844078732e2197f89767cf7c3feb11848e40b7085ea648898da72",
            "y": "sha256:830b8fefb460a74aeeb6d46aa8869501ddcd9d97cd12d64b05461b95fc4793c2",
            "rows": "sha256:1bd3364bf0c3ed03dc3544ef9326d22cfec94359ded5920effe8daea5a17b0d0",
        },
    ),
}
"""The sets by name, as the customary experiments use them (Hernandez-Lobato and Adams, 2015)."""


@dataclass(frozen=True)
class Tabular:
    """A regression set: features `X` (N, D) and one target `y` (N, 1), in float64 and in the units of the source.

    `reordered` says that the rows are the right ones in another order than the customary one, so that seeds and stored
    row numbers give other splits than they gave elsewhere.
    """

    X: Tensor
    y: Tensor
    name: str
    target: str
    reordered: bool = False


def table(name: str) -> Table:
    """The entry `name` of `TABLES`; another name is a SettingsError."""
    if name not in TABLES:
        raise SettingsError(f"Expected a UCI set among {', '.join(TABLES)}, but got {name!r}.")
    return TABLES[name]


def path_of(name: str) -> str:
    """Where the set lies below a folder of data sets."""
    return f"uci/{name}.npz"


def load(name: str, target: str | None = None) -> Tabular:
    """Read a set of `TABLES` from the folders of SPLITPOINT_DATA and verify it.

    `target` is one of the names in its entry, the first by default: energy has heating and cooling, naval compressor
    and turbine. A set that is missing or not what it should be is a DataError that says how to get it.
    """
    expected = table(name)
    target = expected.targets[0] if target is None else target
    if target not in expected.targets:
        raise SettingsError(f"Expected a target of {name} among {', '.join(expected.targets)}, but got {target!r}.")
    arrays, reordered = read(name, find(path_of(name), f" or run: {command_for(name)}"))
    column = expected.targets.index(target)
    y = arrays["y_all"][:, column] if column else arrays["y"]
    x = torch.from_numpy(np.ascontiguousarray(arrays["X"]))
    return Tabular(x, torch.from_numpy(np.ascontiguousarray(y))[:, None], name, target, reordered)


def read(name: str, path: Path) -> tuple[Arrays, bool]:
    """Verified arrays of the file `path`, and whether their rows are in another order than the customary one."""
    arrays = npz.read(name, path, table(name).arrays)
    return arrays, verify(name, arrays, str(path))


def verify(name: str, arrays: Arrays, origin: str) -> bool:
    """Whether the rows are in another order than the customary one; DataError if they are not the right rows at all."""
    expected = table(name)
    shape = arrays["X"].shape
    if shape != (expected.rows, expected.features):
        raise DataError(
            f"Expected {name} to have {expected.rows} rows and {expected.features} features, "
            f"but those of {origin} have shape {shape}; {_again(name)}"
        )
    if all(checksums.of_array(arrays[key]) == expected.checksums[key] for key in expected.arrays):
        return False
    if checksums.of_rows([arrays[key] for key in expected.arrays]) == expected.checksums["rows"]:
        return True
    raise DataError(f"Expected the values of {name}, but {origin} has other values of the same size; {_again(name)}")


def _again(name: str) -> str:
    return f"get it again with: {command_for(name)}"
