"""Files and fingerprints: written whole or not at all, read without unpickling, told apart by what they hold."""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import re
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from splitpoint.errors import StorageError

DRAFT, STALE_SECONDS = ".tmp", 3600
"""Ending of drafts, and the time without a change after which one counts as left behind."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place once it is whole and on the disk, or goes away after an error."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.{_machine()}-{os.getpid()}-", suffix=DRAFT)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.chmod(0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def drop_stale_drafts(path: Path) -> None:
    """Remove drafts of `path` that were left by a process of this machine that is gone, or are older than an hour."""
    for draft in path.parent.glob(f"{glob.escape(path.name)}*{DRAFT}"):
        owner = re.match(rf"\.{_machine()}-(\d+)-", draft.name.removeprefix(path.name))
        with suppress(FileNotFoundError):  # another process may have been faster
            if (owner and not _lives(int(owner[1]))) or time.time() - draft.stat().st_mtime > STALE_SECONDS:
                draft.unlink()


def _machine() -> str:
    """A name of this machine for file names."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _lives(process: int) -> bool:
    """Whether a process of this machine runs; where that cannot be asked, it is taken to."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata to one safetensors file, whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(path) as draft:
        save_file(plain, draft, metadata)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a safetensors file; StorageError if it is not whole."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise StorageError(
            f"Expected a whole safetensors file, but {path} is damaged or cut short ({error})."
        ) from error


def text_digest(text: str, size: int = 16) -> str:
    """Fingerprint of a text, of `size` bytes."""
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def digest(tensors: Iterable[Tensor]) -> str:
    """Fingerprint of shapes, types and contents."""
    state = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous()
        state.update(f"{flat.dtype}{tuple(flat.shape)}".encode())
        if flat.numel():
            state.update(
                flat.numpy().tobytes() if flat.numel() == 1 else flat.reshape(-1).view(torch.uint8).numpy().data
            )
    return state.hexdigest()


def named_digest(tensors: Mapping[str, Tensor]) -> str:
    """Fingerprint of tensors and their names, in whatever order they come."""
    return text_digest("\n".join(sorted(tensors)), 4) + digest(tensors[name] for name in sorted(tensors))


def model_fingerprint(model: nn.Module) -> str:
    """Fingerprint of a model's parameters and buffers, with their names."""
    return named_digest({name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})
