"""Packages that only some data sets need: asked for when used, named with the cure when missing."""

from __future__ import annotations

import importlib
from typing import Any

from splitpoint.errors import SettingsError


def package(module: str, purpose: str, extra: str) -> Any:
    """The imported `module`; a SettingsError says that it `purpose` (a clause) and which `extra` installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"Expected the package {module.partition('.')[0]}, which {purpose}, but it is missing; "
            f"install it with: pip install '.[{extra}]' in a checkout"
        ) from error
