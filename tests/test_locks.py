"""Locks between processes: one holder at a time, gone with its process, and told to who waits."""

import os
import signal
import threading
import time

import pytest

from forks import ended, forked, running
from splitpoint import locks
from splitpoint.errors import SplitPointError
from splitpoint.locks import Claims, exclusive

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

MESSAGE = "{holder} is at it"


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def holding(path, began, child=None):
    """Work that holds a lock for a minute, and says so by a file."""

    def work():
        with exclusive(path, MESSAGE):
            if child is not None:
                forked(child)
            began.touch()
            time.sleep(60)

    return work


def free(path):
    """Whether a lock can be had within a moment."""
    process = forked(lambda: exclusive(path, MESSAGE).__enter__())
    for _ in range(100):
        if os.waitpid(process, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def test_a_lock_is_held_by_one_process_and_ends_with_it(tmp_path):
    path, began = tmp_path / "lock", tmp_path / "began"
    assert free(path)
    with running(holding(path, began)):
        until(began.exists)
        assert not free(path)
    assert free(path)


def test_a_child_does_not_keep_the_lock_of_a_parent_that_was_killed(tmp_path):
    """As the workers of a data loader would, which are forked while rows are recorded."""
    path, began, number = tmp_path / "lock", tmp_path / "began", tmp_path / "number"

    def child():
        number.write_text(str(os.getpid()))
        time.sleep(60)

    with running(holding(path, began, child)):
        until(lambda: began.exists() and number.exists() and number.read_text())
        assert not free(path)
    try:
        assert free(path)
    finally:
        os.kill(int(number.read_text()), signal.SIGKILL)


def test_a_child_that_leaves_the_block_leaves_the_lock_to_its_parent(tmp_path):
    path = tmp_path / "lock"
    with exclusive(path, MESSAGE):

        def leave():
            with open(os.devnull, "rb"):  # what would be closed in place of the lock
                pass

        assert ended(forked(leave))
        assert not free(path)
    assert free(path)


def test_threads_take_turns(tmp_path):
    inside, most = [0], [0]

    def work():
        for _ in range(5):
            with exclusive(tmp_path / "lock", MESSAGE):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_thread_that_waits_for_itself_is_told(tmp_path):
    with exclusive(tmp_path / "lock", MESSAGE):
        with pytest.raises(SplitPointError, match=r"Expected nobody to use .* while this thread does"):
            exclusive(tmp_path / "lock", MESSAGE).__enter__()
        assert not free(tmp_path / "lock")


def test_who_waits_is_told_once_for_whom(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(locks, "SAY_SECONDS", 0.1)
    path, began = tmp_path / "lock", tmp_path / "began"
    with running(holding(path, began)) as holder:
        until(began.exists)
        assert not free(path)
        assert capfd.readouterr().err == f"process {holder} is at it\n"


def test_a_lock_file_that_is_deleted_and_made_anew_is_still_one_lock(tmp_path):
    """Both would hold the lock, one of a file that is gone, if it did not look again."""
    path, began, again = tmp_path / "lock", tmp_path / "began", tmp_path / "again"
    with running(holding(path, began)) as first:
        until(began.exists)
        with running(holding(path, again)):
            time.sleep(0.1)
            path.unlink()
            os.kill(first, signal.SIGKILL)
            until(again.exists)
            assert not free(path)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    with pytest.raises(SplitPointError, match=r"Expected to write to the folder .*gone, but got"):
        exclusive(tmp_path / "gone" / "lock", MESSAGE).__enter__()


# Claims


def test_a_name_is_claimed_by_one_process(tmp_path):
    claims, began = Claims(tmp_path / "claims"), tmp_path / "began"
    assert claims.take(["a", "b"])

    def work():
        own = Claims(tmp_path / "claims")
        assert not own.take(["c", "b"])
        assert own.take(["c"])
        began.touch()
        time.sleep(60)

    with running(work):
        until(began.exists)
        assert not claims.take(["d", "c"])
        assert claims.take(["d"])  # nothing of what was not had is kept
    assert claims.take(["c"])
    claims.drop(["a", "b", "c", "d"])
    assert ended(forked(lambda: Claims(tmp_path / "claims").take(["a", "b"]) or os._exit(1)))
    claims.close()


def test_a_name_that_is_claimed_already_is_not_claimed_again(tmp_path):
    claims = Claims(tmp_path / "claims")
    assert claims.take(["a"])
    assert not claims.take(["b", "a"])
    assert claims.take(["b"])
    claims.close()
