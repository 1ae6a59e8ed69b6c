import io
import tarfile
import zipfile

import pytest

from splitpoint.datasets.archives import DAMAGED, members


def held(path):
    """Names and contents of the members."""
    found = {}
    for name, source in members(path):
        with source() as stream:
            found[str(name)] = stream.read()
    return found


def test_a_zip_gives_its_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        archive.writestr("folder/", b"")
        archive.writestr("folder/b.txt", b"b")
    assert held(tmp_path / "a") == {"folder/b.txt": b"b"}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_gives_its_files_without_links(tmp_path, mode):
    with tarfile.open(tmp_path / "a", mode) as archive:
        for name, kind in (("folder", tarfile.DIRTYPE), ("link", tarfile.SYMTYPE), ("folder/b.txt", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "folder/b.txt"
            info.size = 1 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"b"))
    assert held(tmp_path / "a") == {"folder/b.txt": b"b"}


def test_what_is_no_archive_is_damaged(tmp_path):
    (tmp_path / "a").write_bytes(b"no archive")
    with pytest.raises(DAMAGED):
        held(tmp_path / "a")
