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
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from splitpoint.errors import StorageError

fcntl: Any = import_module("fcntl") if os.name == "posix" else None  # elsewhere nobody can tell who writes a file

DRAFT, STALE_SECONDS = ".tmp", 3600
"""Ending of drafts, and the time without a change after which one that no process holds counts as left behind."""

CONTENTS = "contents"
"""Where in the metadata of a file the digest of everything in it is."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place once it is whole and on the disk, or goes away after an error.

    It is locked meanwhile, as long as the process lives, which tells it from one that a killed process left.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.{_machine()}-{os.getpid()}-", suffix=DRAFT)
    draft = Path(name)
    try:
        _lock(handle)
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.chmod(0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def drop_stale_drafts(path: Path) -> None:
    """Remove drafts of `path` that no living process writes.

    Those are the drafts that nobody holds a lock on, and whose process was one of this machine that is gone, or which
    have not been touched for an hour.
    """
    for draft in path.parent.glob(f"{glob.escape(path.name)}.*-*{DRAFT}"):
        owner = re.match(r"\.([0-9a-f]{8})-(\d+)-", draft.name.removeprefix(path.name))
        with suppress(OSError):  # another process may have been faster, or may own it
            if owner is None:
                continue
            gone = owner[1] == _machine() and not _lives(int(owner[2]))
            old = time.time() - draft.stat().st_mtime > STALE_SECONDS
            if (gone or old) and not _locked(draft):
                draft.unlink()


def _lock(handle: int) -> bool:
    """Lock an open file as long as this process holds it open; whether nobody else does, or nobody can tell."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # of file systems without locks
        pass
    return True


def _locked(draft: Path) -> bool:
    """Whether a process holds a draft open to write it."""
    handle = os.open(draft, os.O_RDONLY)
    try:
        return not _lock(handle)
    finally:
        os.close(handle)


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


def file_to_write(path: str | os.PathLike[str]) -> Path:
    """Where a file is to be written: links are followed; StorageError for what is no file or in no folder."""
    named = Path(path)
    try:
        place = named.resolve()
        if place.is_dir():
            raise StorageError(f"Expected a file to save to, but {named} is a folder; name a file in it.")
        if place.exists() and not place.is_file():
            raise StorageError(
                f"Expected a file to save to, but {named} is a device, a pipe or a socket; name an ordinary file."
            )
        if not place.parent.is_dir():
            raise StorageError(f"Expected a folder to save to, but {place.parent} does not exist; create it first.")
    except (OSError, RuntimeError, ValueError) as error:  # names that are too long, rings of links, zeros in names
        raise _unwritten(named, error) from error
    return place


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata to one safetensors file with a digest of both, whole or not at all.

    StorageError where the disk is full or the file cannot be written for another reason; an older one then stays.
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        with replacing(path) as draft:
            draft.write_bytes(save(plain, metadata | {CONTENTS: _contents(plain, metadata)}))
    except (OSError, SafetensorError) as error:
        raise _unwritten(path, error) from error


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a safetensors file; StorageError if it is not whole or not what was written.

    Files of older versions have no digest of their contents, which the metadata then lack.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise StorageError(
            f"Expected a whole safetensors file, but {path} is damaged or cut short ({one_line(error)})."
        ) from error
    told = {name: text for name, text in metadata.items() if name != CONTENTS}
    if CONTENTS in metadata and metadata[CONTENTS] != _contents(tensors, told):
        raise StorageError(
            f"Expected a whole safetensors file, but {path} is damaged: its contents are not those that were written; "
            "take another copy of it, or write it again."
        )
    return metadata, tensors


def _contents(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Digest of all tensors and metadata with their names."""
    return text_digest("\n".join([repr(sorted(metadata.items())), *sorted(tensors), named_digest(tensors)]))


def _unwritten(path: Path, error: Exception) -> StorageError:
    return StorageError(
        f"Expected to write {path}, but that failed ({one_line(error)}); what was there before has not changed. Make "
        "room for it, or name another file."
    )


def one_line(error: Exception) -> str:
    """What an error says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def text_digest(text: str, size: int = 16) -> str:
    """Fingerprint of a text, of `size` bytes."""
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def digest(tensors: Iterable[Tensor]) -> str:
    """Fingerprint of shapes, types and contents."""
    state = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous()
        state.update(f"{flat.dtype}{tuple(flat.shape)}".encode())
        if flat.numel():  # a single number may come with any stride, which bytes may not
            state.update(flat.reshape(-1).as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().data)
    return state.hexdigest()


def named_digest(tensors: Mapping[str, Tensor]) -> str:
    """Fingerprint of tensors and their names, in whatever order they come."""
    return text_digest("\n".join(sorted(tensors)), 4) + digest(tensors[name] for name in sorted(tensors))


def model_fingerprint(model: nn.Module) -> str:
    """Fingerprint of a model's parameters and buffers, with their names."""
    return named_digest({name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})
