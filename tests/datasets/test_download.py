"""Whole sets from a local server: converted, verified, and in place entirely or not at all."""

import gzip
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from image_files import idx
from made_up import checksums_of, workbook, zipped
from splitpoint.datasets import SETS, load, tables
from splitpoint.datasets.arrays import array_checksum
from splitpoint.datasets.bounded import DAMAGED
from splitpoint.datasets.download import DOWNLOADS, download, members
from splitpoint.datasets.entry import VARIABLE, Source
from splitpoint.errors import DataError, SettingsError

ROWS = np.arange(21.0).reshape(3, 7)
"""A yacht set of three rows."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path):
    """A folder and the address under which its files are served."""
    folder = tmp_path / "web"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def offer(monkeypatch, web, name, files, checksums=None):
    """Serve `files` as the sources of the set `name`, with their checksums unless it is a table.

    `checksums` are those of what a download of images makes.
    """
    folder, address = web
    for file_name, data in files.items():
        (folder / file_name).write_bytes(data)
    entry = SETS[name]
    sources = tuple(
        Source(f"{address}/{file_name}", f"md5:{md5(data).hexdigest()}" if checksums else "")
        for file_name, data in files.items()
    )
    changed = {"forms": (replace(entry.forms[0], checksums=checksums), *entry.forms[1:])} if checksums else {}
    monkeypatch.setitem(SETS, name, replace(entry, sources=sources, **changed))


def small_table(monkeypatch, name, x, y):
    """Make the set `name` one of these few rows."""
    sums = checksums_of({"X": x, "y": y})
    monkeypatch.setitem(SETS, name, replace(SETS[name], rows=len(x), features=x.shape[1], checksums=sums))


def yacht(monkeypatch, web, rows):
    small_table(monkeypatch, "yacht", ROWS[:, :6], ROWS[:, 6])
    text = "\n".join(" ".join(map(str, row)) for row in rows)
    offer(monkeypatch, web, "yacht", {"yacht+hydrodynamics.zip": zipped(**{"yacht_hydrodynamics.data": text})})


def get(name, folder, **options):
    return download(name, folder, attempts=1, wait=0.0, progress=False, **options)


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_table_is_converted_and_can_be_loaded(monkeypatch, web, tmp_path):
    yacht(monkeypatch, web, ROWS)
    data = tmp_path / "data"
    assert get("yacht", data) == data / "uci" / "yacht.npz"
    assert everything(data) == ["uci/yacht.npz"]
    monkeypatch.setenv(VARIABLE, str(data))
    loaded = load("yacht")
    assert loaded.X.tolist() == ROWS[:, :6].tolist()
    assert not loaded.reordered


def test_the_default_folder_is_the_first_that_is_named(monkeypatch, web, tmp_path):
    yacht(monkeypatch, web, ROWS)
    monkeypatch.setenv(VARIABLE, f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    assert get("yacht", None) == tmp_path / "one" / "uci" / "yacht.npz"
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(
        SettingsError, match=r"Expected a folder for the data, but SPLITPOINT_DATA names none; .*--to DIR"
    ):
        get("yacht", None)


def test_the_right_rows_in_another_order_are_accepted_and_told(monkeypatch, web, tmp_path):
    yacht(monkeypatch, web, ROWS[::-1])
    get("yacht", tmp_path / "data")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    assert load("yacht").reordered


def test_other_values_are_refused_and_leave_nothing(monkeypatch, web, tmp_path):
    yacht(monkeypatch, web, ROWS + 1)
    with pytest.raises(
        DataError, match=r"Expected yacht\+hydrodynamics.zip to hold the values of yacht .*may have changed"
    ):
        get("yacht", tmp_path / "data")
    assert everything(tmp_path / "data") == []


def test_the_sheet_in_the_customary_order_is_preferred(monkeypatch, web, tmp_path):
    rows = np.arange(10.0).reshape(2, 5)
    small_table(monkeypatch, "power", rows[:, :4], rows[:, 4])
    book = workbook(*([["AT", "V", "AP", "RH", "PE"], *order.tolist()] for order in (rows[::-1], rows)))
    offer(monkeypatch, web, "power", {"power.zip": zipped(**{"CCPP/Folds5x2_pp.xlsx": book})})
    get("power", tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert not load("power").reordered


def test_a_whole_set_is_not_downloaded_again_and_a_damaged_one_is(monkeypatch, web, tmp_path):
    yacht(monkeypatch, web, ROWS)
    path = get("yacht", tmp_path)
    (web[0] / "yacht+hydrodynamics.zip").rename(web[0] / "away")
    assert get("yacht", tmp_path) == path
    good = path.read_bytes()
    path.write_bytes(good[:100])
    with pytest.raises(DataError, match="404"):
        get("yacht", tmp_path)
    (web[0] / "away").rename(web[0] / "yacht+hydrodynamics.zip")
    get("yacht", tmp_path)
    assert tables.read(SETS["yacht"], path)[1] is False


def test_a_download_that_was_cut_is_kept_for_the_next_call(monkeypatch, web, tmp_path):
    yacht(monkeypatch, web, ROWS)
    part = tmp_path / DOWNLOADS / "yacht" / "yacht+hydrodynamics.zip.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"PK")  # this server knows no ranges and sends everything again
    get("yacht", tmp_path)
    assert everything(tmp_path / DOWNLOADS) == []


# Images


IMAGES = {
    "x_train": np.arange(60, dtype=np.uint8).reshape(5, 3, 4),
    "y_train": np.arange(5, dtype=np.uint8),
    "x_test": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "y_test": np.arange(2, dtype=np.uint8),
}


def test_idx_files_become_one_npz(monkeypatch, web, tmp_path):
    sums = {key: array_checksum(value) for key, value in IMAGES.items()}
    offer(monkeypatch, web, "mnist", {f"{key}.gz": gzip.compress(idx(value)) for key, value in IMAGES.items()}, sums)
    path = get("mnist", tmp_path / "data")
    assert everything(tmp_path / "data") == ["mnist.npz"]
    with np.load(path) as file:
        assert all(np.array_equal(file[key], value) for key, value in IMAGES.items())


def test_idx_files_with_other_images_are_refused(monkeypatch, web, tmp_path):
    sums = {key: array_checksum(value + 1) for key, value in IMAGES.items()}
    offer(monkeypatch, web, "mnist", {f"{key}.gz": gzip.compress(idx(value)) for key, value in IMAGES.items()}, sums)
    with pytest.raises(DataError, match="Expected the values of mnist, but its array x_train has others"):
        get("mnist", tmp_path / "data")
    assert everything(tmp_path / "data") == []


def tarred(**members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def test_only_the_files_that_belong_to_it_leave_an_archive(monkeypatch, web, tmp_path):
    archive = tarred(**{"cifar-100-binary/train.bin": b"abc", "../../test.bin": b"de", "/etc/evil.bin": b"x"})
    offer(monkeypatch, web, "cifar100", {"a.tar.gz": archive}, {"train.bin": "size:3", "test.bin": "size:2"})
    path = get("cifar100", tmp_path / "data")
    assert everything(tmp_path / "data") == ["cifar-100-binary/test.bin", "cifar-100-binary/train.bin"]
    assert (path / "train.bin").read_bytes() == b"abc"


def test_an_archive_that_lacks_a_file_leaves_what_was_there(monkeypatch, web, tmp_path):
    offer(
        monkeypatch,
        web,
        "cifar100",
        {"a.tar.gz": tarred(**{"a/train.bin": b"abc"})},
        {"train.bin": "size:3", "b": "size:1"},
    )
    old = tmp_path / "data" / "cifar-100-binary" / "old.bin"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    with pytest.raises(DataError, match="Expected cifar100 to have a file b, but"):
        get("cifar100", tmp_path / "data")
    assert everything(tmp_path / "data") == ["cifar-100-binary/old.bin"]


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_a_folder_keeps_its_folders_and_only_what_belongs_to_it(pack, monkeypatch, web, tmp_path):
    members = {
        "imagenet-o/n01/a b.JPEG": b"a",
        "./imagenet-o/n02/c.JPEG": b"c",
        "imagenet-o/n02/._c.JPEG": b"hidden",
        "imagenet-o/README.txt": b"read me",
        "imagenet-o/../evil.JPEG": b"evil",
        "imagenet-o/n02/../../n03/evil.JPEG": b"evil",
        "../n03/evil.JPEG": b"evil",
        "other/n01/d.JPEG": b"d",
    }
    offer(monkeypatch, web, "imagenet_o", {"imagenet-o.bin": pack(**members)}, {"n*/*.JPEG": "files:2"})
    path = get("imagenet_o", tmp_path / "data")
    assert everything(tmp_path) == [
        "data/imagenet-o/n01/a b.JPEG",
        "data/imagenet-o/n02/c.JPEG",
        "web/imagenet-o.bin",
    ]
    assert (path / "n02" / "c.JPEG").read_bytes() == b"c"
    (web[0] / "imagenet-o.bin").unlink()
    assert get("imagenet_o", tmp_path / "data") == path


def test_a_folder_that_lacks_files_or_cannot_be_unpacked_leaves_nothing(monkeypatch, web, tmp_path):
    archive = tarred(**{"imagenet-o/n01/a.JPEG": b"a"})
    offer(monkeypatch, web, "imagenet_o", {"a.tar": archive}, {"n*/*.JPEG": "files:2"})
    with pytest.raises(DataError, match="Expected imagenet_o to have 2 files"):
        get("imagenet_o", tmp_path / "data")
    for damaged in (archive[:60], b"no archive"):
        offer(monkeypatch, web, "imagenet_o", {"a.tar": damaged}, {"n*/*.JPEG": "files:1"})
        with pytest.raises(
            DataError, match=r"Expected a.tar to be an archive of imagenet_o, but it cannot be unpacked"
        ):
            get("imagenet_o", tmp_path / "data")
    assert everything(tmp_path / "data") == []


def test_a_set_without_an_address_says_what_to_do_instead(tmp_path):
    with pytest.raises(DataError, match=r"cannot be downloaded; accept its licence at image-net.org and put .*\.$"):
        get("imagenet", tmp_path)
    assert everything(tmp_path) == []


def test_plain_files_stay_as_they_are_and_only_what_is_missing_is_asked_for(monkeypatch, web, tmp_path):
    files = {"train_32x32.mat": b"train", "test_32x32.mat": b"test"}
    offer(monkeypatch, web, "svhn", files, {name: f"md5:{md5(data).hexdigest()}" for name, data in files.items()})
    (web[0] / "test_32x32.mat").rename(web[0] / "away")
    with pytest.raises(DataError, match="404"):
        get("svhn", tmp_path / "data")
    (web[0] / "away").rename(web[0] / "test_32x32.mat")
    (web[0] / "train_32x32.mat").unlink()
    get("svhn", tmp_path / "data")
    assert everything(tmp_path / "data") == ["svhn/test_32x32.mat", "svhn/train_32x32.mat"]


def test_a_wrong_checksum_leaves_nothing(monkeypatch, web, tmp_path):
    offer(monkeypatch, web, "svhn", {"train_32x32.mat": b"train"}, {"train_32x32.mat": "size:5"})
    (web[0] / "train_32x32.mat").write_bytes(b"other")
    with pytest.raises(DataError, match="nothing was kept"):
        get("svhn", tmp_path / "data")
    assert everything(tmp_path / "data") == []


def test_a_set_that_does_not_exist(tmp_path):
    with pytest.raises(SettingsError, match=r"Expected a data set among boston, .*, pie, but got 'iris'\."):
        get("iris", tmp_path)


# Archives


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
