"""Downloads from a server in this process that can cut connections, forget ranges and fail."""

import hashlib
import os
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import splitpoint
from splitpoint.datasets.download import _Guarded, fetch, part_of
from splitpoint.errors import DataError

CONTENT = bytes(range(256)) * 2000
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `cuts` are bytes after which coming answers end, `failures` codes they have instead."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.cuts, self.failures, self.asked, self.pause = CONTENT, True, [], [], [], 0.0

    def handle_error(self, *_):
        """A client that hung up is no news."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/set.bin"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if server.failures:
            self.send_error(server.failures.pop(0))
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
        total = len(server.content)
        if start >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Content-Length", str(total - start))
        self.end_headers()
        body = server.content[start:]
        body = body[: server.cuts.pop(0)] if server.cuts else body
        for begin in range(0, len(body), 65536):
            self.wfile.write(body[begin : begin + 65536])
            time.sleep(server.pause)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, folder, checksum=MD5, **options):
    return fetch(server.url, folder / "set.bin", checksum, **({"wait": 0.0, "progress": False} | options))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_alone(server, tmp_path):
    path = get(server, tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["set.bin"]
    assert server.asked == [None]


def test_a_cut_connection_goes_on_where_it_stopped(server, tmp_path):
    server.cuts = [100_000, 7]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=100007-"]


def test_the_next_call_goes_on_where_the_last_one_stopped(server, tmp_path):
    server.cuts = [50_000, 50_000]
    with pytest.raises(
        DataError, match=r"2 attempts failed \(the connection ended after 100,000 of 512,000 bytes\); try"
    ):
        get(server, tmp_path, attempts=2)
    assert names(tmp_path) == ["set.bin.part"]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=100000-"


def test_a_server_without_ranges_sends_everything_again(server, tmp_path):
    server.ranges, server.cuts = False, [100_000]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_a_part_that_was_whole_needs_nothing_more(server, tmp_path):
    part_of(tmp_path / "set.bin").write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


def test_a_part_that_is_too_long_is_thrown_away(server, tmp_path):
    part_of(tmp_path / "set.bin").write_bytes(CONTENT + b"more")
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] is None


def test_a_part_of_another_file_is_thrown_away(server, tmp_path):
    part_of(tmp_path / "set.bin").write_bytes(b"another beginning")
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=17-", None]


def test_a_wrong_checksum_keeps_nothing(server, tmp_path):
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(DataError, match=r"Expected http.*/set.bin to have md5:\w+, but what came has md5:\w+; nothing"):
        get(server, tmp_path)
    assert names(tmp_path) == []
    assert len(server.asked) == 1


def test_without_a_checksum_the_length_is_still_verified(server, tmp_path):
    server.cuts = [10]
    with pytest.raises(DataError, match="1 attempts failed"):
        get(server, tmp_path, checksum="", attempts=1)
    assert names(tmp_path) == ["set.bin.part"]
    assert get(server, tmp_path, checksum="").read_bytes() == CONTENT


def test_what_is_there_is_not_asked_for_again_unless_it_is_wrong(server, tmp_path):
    get(server, tmp_path)
    get(server, tmp_path)
    assert len(server.asked) == 1
    (tmp_path / "set.bin").write_bytes(b"damaged")
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_errors_that_pass_are_tried_again(server, tmp_path):
    server.failures = [503, 429]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 3


def test_errors_that_stay_are_told_at_once(server, tmp_path):
    server.failures = [404]
    with pytest.raises(DataError, match=r"Expected to download http.*, but the server said 404 Not Found\."):
        get(server, tmp_path)
    assert len(server.asked) == 1
    assert names(tmp_path) == []


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"2 attempts failed \(.*refused"):
        fetch("http://127.0.0.1:9/set.bin", tmp_path / "set.bin", attempts=2, wait=0.0, progress=False)
    assert names(tmp_path) == []


def test_a_server_that_says_nothing_times_out(server, tmp_path):
    server.pause = 0.5
    with pytest.raises(DataError, match="1 attempts failed"):
        get(server, tmp_path, attempts=1, timeout=0.05)


def test_waiting_doubles(server, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    server.failures = [500, 500, 500]
    get(server, tmp_path, wait=0.25)
    assert [wait for wait in waits if wait] == [0.25, 0.5, 1.0]


def test_progress_counts_what_was_there_before(server, tmp_path, capsys):
    part_of(tmp_path / "set.bin").write_bytes(CONTENT[:256_000])
    get(server, tmp_path, progress=True)
    assert "256k/512k" in capsys.readouterr().err


def test_a_killed_process_leaves_nothing_that_looks_whole(server, tmp_path):
    server.pause = 0.2
    code = f"import pathlib, splitpoint.datasets.download as d; d.fetch({server.url!r}, pathlib.Path('set.bin'))"
    environment = os.environ | {"PYTHONPATH": str(Path(splitpoint.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    part = part_of(tmp_path / "set.bin")
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert names(tmp_path) == ["set.bin.part"]
    arrived = part.stat().st_size
    assert 0 < arrived < len(CONTENT)
    server.pause = 0.0
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={arrived}-"


class Elsewhere(BaseHTTPRequestHandler):
    """Sends every request to the address that the server names."""

    def do_GET(self):
        self.send_response(302)
        self.send_header("Location", self.server.target)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a"])
def test_a_server_that_sends_elsewhere_is_followed_over_http_alone(target, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        server.target = target
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/a"
        with pytest.raises(DataError, match=rf"^Expected .*127.*{target}"):
            fetch(url, tmp_path / "a", progress=False)
        server.shutdown()
    assert names(tmp_path) == []


@pytest.mark.parametrize("target", ["http://example.org/a", "HTTP://example.org/a", "file:///etc/passwd"])
def test_nothing_leads_away_from_https(target):
    request = urllib.request.Request("https://example.org/a")
    with pytest.raises(DataError, match=r"to stay with https, but the server sends to .*; nothing was asked for"):
        _Guarded().redirect_request(request, None, 302, "Found", {}, target)
    kept = _Guarded().redirect_request(request, None, 302, "Found", {}, "https://example.org/b")
    assert kept.full_url == "https://example.org/b"
