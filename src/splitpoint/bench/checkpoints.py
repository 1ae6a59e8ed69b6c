"""Checkpoints of trainings: found by their settings, written whole or not at all, trusted if every bit is right."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from splitpoint.errors import SettingsError, StorageError
from splitpoint.files import drop_stale_drafts, named_digest, read_tensors, text_digest, write_tensors, write_text

Log = list[dict[str, float]]
"""Figures of every epoch."""


@dataclass(frozen=True)
class Stored:
    """What a file holds: tensors by name, and the log of the epochs that led to them."""

    tensors: dict[str, Tensor]
    log: Log


@dataclass(frozen=True)
class Checkpoint:
    """Files of one training: ``NAME.safetensors`` once it is finished, before that ``NAME.state.safetensors``.

    ``NAME.json`` tells people the settings and the log; it is never read.

    Attributes:
        path: of the finished weights.
        settings: as JSON.
    """

    path: Path
    settings: str

    @staticmethod
    def of(folder: Path, name: str, settings: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint of these settings, whose hash ends its name."""
        try:
            text = json.dumps(settings, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"Expected settings that JSON can hold, but got others: {error}.") from error
        code = text_digest(text, 8)
        return Checkpoint(folder / f"{name}-{code}.safetensors", text)

    @property
    def _unfinished(self) -> Path:
        return self.path.with_suffix(".state.safetensors")

    def prepare(self) -> None:
        """Write the settings now, so that a folder that cannot be written to is found before the work is done.

        What killed processes left of earlier drafts goes away.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path in (self.path, self._unfinished):
                drop_stale_drafts(path)
            self._describe([])
        except OSError as error:
            raise StorageError(
                f"Expected to write checkpoints to the folder {self.path.parent}, but cannot ({error.strerror})."
            ) from error

    def weights(self) -> Stored | None:
        """The finished weights, or None."""
        return self._read(self.path)

    def state(self) -> Stored | None:
        """The state after the last whole epoch of an unfinished training, or None."""
        return self._read(self._unfinished)

    def keep(self, state: Mapping[str, Tensor], log: Log) -> None:
        """Store what is needed to go on after an epoch."""
        self._write(self._unfinished, state, log)

    def finish(self, weights: Mapping[str, Tensor], log: Log) -> None:
        """Store the weights, and drop what only a training that goes on needs."""
        self._write(self.path, weights, log)
        self._unfinished.unlink(missing_ok=True)

    def _write(self, path: Path, tensors: Mapping[str, Tensor], log: Log) -> None:
        self._describe(log)
        metadata = {"settings": self.settings, "log": json.dumps(log), "digest": named_digest(tensors)}
        write_tensors(path, tensors, metadata)

    def _describe(self, log: Log) -> None:
        described = {"settings": json.loads(self.settings), "log": log}
        write_text(self.path.with_suffix(".json"), json.dumps(described, indent=1) + "\n")

    def _read(self, path: Path) -> Stored | None:
        """What a file holds if it is whole and of these settings; a warning if it is not."""
        if not path.exists():
            return None
        try:
            metadata, tensors = read_tensors(path)
            if metadata["settings"] != self.settings or metadata["digest"] != named_digest(tensors):
                raise StorageError("Expected the settings and the digest of its numbers, but it has others.")
            return Stored(tensors, json.loads(metadata["log"]))
        except (StorageError, KeyError, ValueError) as error:
            warnings.warn(
                f"Expected a whole checkpoint, but {path} cannot be trusted and is left out. {error}", stacklevel=2
            )
            return None
