"""Where predictors are saved: links, devices, full disks, and what killed saves leave behind."""

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

import splitpoint as sp
from splitpoint import files
from splitpoint.errors import StorageError
from splitpoint.files import drop_stale_drafts, replacing
from stored import assert_same_prediction, regression, saved


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def uq():
    torch.manual_seed(0)
    return regression()


def test_a_link_is_followed(uq, tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "uq.safetensors", tmp_path / "link"
    link.symlink_to(target)
    for _ in range(2):
        uq.save(link)
        assert link.is_symlink()
        assert_same_prediction(sp.load(target, uq.base)(torch.ones(2, 3)), uq(torch.ones(2, 3)))
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_ring_of_links_is_refused(uq, tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with pytest.raises(StorageError, match=r"^Expected to write [^\n]*$"):
        uq.save(tmp_path / "one")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder", "link to a device"])
def test_what_is_no_file_is_refused_and_stays(kind, uq, tmp_path):
    path = tmp_path / "uq.safetensors"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as own:
            own.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to a device":
        path.symlink_to(os.devnull)
    else:
        path = os.devnull
    before = os.stat(path)
    with pytest.raises(StorageError, match=r"Expected a file to save to, but .* is a (folder|device|pipe|socket)"):
        uq.save(path)
    assert (os.stat(path).st_mode, os.stat(path).st_ino) == (before.st_mode, before.st_ino)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 240, "a\0b"], ids=["too long", "too long for a draft", "zero"])
def test_a_name_that_cannot_be_is_refused(name, uq, tmp_path):
    with pytest.raises(StorageError, match=r"^Expected to write [^\n]*, but that failed \([^\n]*$"):
        uq.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("step", ["mkstemp", "write_bytes", "fsync", "replace"])
def test_a_disk_that_takes_no_more_leaves_the_old_file(step, code, uq, tmp_path, monkeypatch):
    path = saved(uq, tmp_path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    owner = {"mkstemp": files.tempfile, "write_bytes": files.Path, "fsync": os, "replace": os}[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fail)
        with pytest.raises(StorageError, match=f"^Expected to write [^\n]*{os.strerror(code)}[^\n]*not changed"):
            regression(outputs=2).save(path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_disk_that_is_really_full_is_one_sentence(uq, tmp_path):
    path = saved(uq, tmp_path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"^Expected to write [^\n]*, but that failed \(File too large\)[^\n]*$"):
            uq.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


# What killed saves leave


WRITER = """
import sys, time
from pathlib import Path
from splitpoint.files import replacing
with replacing(Path(sys.argv[1])) as draft:
    draft.write_bytes(b"half of it")
    print(draft, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of a save, and its draft."""
    target = tmp_path / "uq.safetensors"
    process = subprocess.Popen([sys.executable, "-c", WRITER, target], stdout=subprocess.PIPE, text=True)
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_save_removes_the_draft_of_a_killed_one_and_not_that_of_a_living_one(uq, writer, tmp_path, monkeypatch):
    process, draft = writer
    path = saved(uq, tmp_path)
    assert os.path.exists(draft), "its process lives"
    os.utime(draft, (0, 0))
    monkeypatch.setattr(files, "_lives", lambda _: False)  # as from a container, which cannot see the process
    uq.save(path)
    assert os.path.exists(draft), "its process holds it, however old it is"
    process.send_signal(signal.SIGKILL)
    process.wait()
    uq.save(path)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_drafts_of_other_files_and_files_of_the_user_are_left_alone(uq, tmp_path):
    path = tmp_path / "uq"
    others = [
        tmp_path / "uq.notes-of-mine.tmp",
        tmp_path / "uq2.01234567-99999999-abc.tmp",
        tmp_path / "uq.tmp",
        tmp_path / "uq-old.tmp",
    ]
    for other in others:
        other.write_bytes(b"mine")
        os.utime(other, (0, 0))
    uq.save(path)
    assert all(other.exists() for other in others)


def test_a_draft_of_ones_own_process_is_not_removed_by_another_thread(tmp_path):
    path = tmp_path / "uq"
    with replacing(path) as draft:
        os.utime(draft, (0, 0))
        drop_stale_drafts(path)
        assert draft.exists()
        draft.write_bytes(b"whole")
    assert path.read_bytes() == b"whole"


def test_a_save_is_killed_at_any_moment_and_leaves_one_of_the_two_files(uq, tmp_path):
    path = saved(uq, tmp_path)
    code = "import sys\nimport splitpoint as sp\nfrom stored import regression\nuq = regression()\nprint(flush=True)\n"
    code += "while True:\n    uq.save(sys.argv[1])\n"
    for wait in (0.0, 0.013):
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, path], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(wait)
        process.kill()
        process.wait()
        process.stdout.close()
        assert read(path), "it is whole"
    uq.save(path)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def read(path):
    return files.read_tensors(path)[0]
