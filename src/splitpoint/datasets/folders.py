"""Where data sets lie on this machine: the folders that the environment variable SPLITPOINT_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

from splitpoint.errors import DataError

VARIABLE = "SPLITPOINT_DATA"


def folders() -> list[Path]:
    """The colon-separated folders of SPLITPOINT_DATA, in their order."""
    return [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]


def locate(*names: str) -> Path | None:
    """The first of `names` that a folder has, taken from the first of the `folders` that has it, or None."""
    return next((folder / name for name in names for folder in folders() if (folder / name).exists()), None)


def command_for(name: str) -> str:
    """What to run to get the data set `name`."""
    return f"splitpoint data download {name}" + ("" if folders() else " --to DIR")


def find(name: str, remedy: str = "") -> Path:
    """As `locate`, but what is missing is an error; `remedy` ends its sentence with something else to do."""
    found = locate(name)
    if found is None:
        raise missing(name, f"set it to a folder that holds {name}{remedy}")
    return found


def missing(what: str, remedy: str) -> DataError:
    """The error that says where `what` was looked for; `remedy` is what to do."""
    searched = ", ".join(str(f) if f.is_dir() else f"{f} (no such folder)" for f in folders()) or "no folder"
    return DataError(f"Expected to find {what}, but {VARIABLE} names {searched}; {remedy}.")
