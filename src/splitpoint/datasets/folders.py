"""Where data sets lie on this machine: the folders that the environment variable SPLITPOINT_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

from splitpoint.errors import DataError

VARIABLE = "SPLITPOINT_DATA"


def find(name: str) -> Path:
    """The file or folder `name` in the first of the colon-separated folders of SPLITPOINT_DATA that has it."""
    folders = [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    searched = ", ".join(map(str, folders)) or "no folder"
    raise DataError(f"Expected to find {name}, but {VARIABLE} names {searched}; set it to a folder that holds {name}.")
