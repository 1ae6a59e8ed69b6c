"""Where networks run: the processor, or an accelerator that torch has here."""

from __future__ import annotations

import torch

from splitpoint.errors import SettingsError


def check_device(name: str) -> None:
    """An error now where torch does not know the device `name`, does not have it, or cannot compute on it."""
    try:
        torch.zeros(1, device=torch.device(name)).add(1).cpu()
    except Exception as error:  # of many kinds: every backend has its own
        reason = next(iter(str(error).splitlines()), type(error).__name__).strip().rstrip(".")
        raise SettingsError(
            f"Expected device to be cpu or one that torch can use here, such as cuda, cuda:1 or mps, but got {name!r} "
            f"({reason}); leave it out to run on the processor, or install a torch that has it."
        ) from error
