"""The workers: killed at any moment it goes on, workers never outlive it, and the number of jobs changes nothing."""

import contextlib
import dataclasses
import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import splitpoint as sp
from properties import examples
from splitpoint import cli
from splitpoint.bench.record import RECORDS, Cell, Journal, Record
from splitpoint.bench.run import done_in
from splitpoint.bench.workers import run_all
from splitpoint.datasets.entry import find
from splitpoint.errors import DataError, SplitPointError

SOURCE = Path(sp.__file__).parents[1]
KILLS = 10

DRIVER = '''
"""Toy work, and a process that runs it over and over in processes of its own: one for each line that it is sent."""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_workers import run_toy, toys
from splitpoint.bench.workers import run_all

if __name__ == "__main__":
    folder, jobs, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    if jobs > 1:
        run_all(toys(folder, pause=pause), run_toy, folder, jobs=jobs, progress=False)
        sys.exit()
    print("ready", flush=True)
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            os.setsid()
            print(os.getpid(), flush=True)
            run_all(toys(folder, pause=pause), run_toy, folder, jobs=1, progress=False)
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
'''


# Work that takes no time


@dataclasses.dataclass(frozen=True)
class Toy:
    """Two methods on some trials of a set; the figures depend on nothing else."""

    dataset: str
    trials: tuple[int, ...]
    pause: float = 0.0
    cost: float = 1.0

    @property
    def label(self):
        return f"toy {self.dataset}"


def run_toy(toy):
    for method in ("one", "two"):
        time.sleep(toy.pause)
        yield [toy_record(toy, method, trial) for trial in toy.trials]


def toy_record(toy, method, trial):
    generator = torch.Generator().manual_seed(trial)
    figure = float(torch.randn(1, generator=generator)) + len(toy.dataset) * len(method)
    metrics = {"rmse": figure, "picp": float("nan")}
    timing = {"train_cpu_s": time.time()}
    error = "ValueError: it broke" if toy.dataset == "broken" else None
    where = cell(toy.dataset, method)._asdict()
    return Record(**where, trial=trial, stack=toy.trials, seed=0, metrics=metrics, timing=timing, error=error)


def cell(dataset, method):
    return Cell("toy", "paper", "clean", dataset, method)


def toys(folder, count=10, trials=3, pause=0.0):
    """What is left to do."""
    done = done_in(Journal(folder).read())
    found = []
    for number in range(count):
        have = done(cell(f"set{number}", "one"), 0) & done(cell(f"set{number}", "two"), 0)
        left = tuple(trial for trial in range(trials) if trial not in have)
        if left:
            found.append(Toy(f"set{number}", left, pause, cost=1 + number % 3))
    return found


def run_work_that_dies(toy):
    os.kill(os.getpid(), signal.SIGKILL)
    yield from run_toy(toy)


def run_arithmetic(toy):
    """Figures that denormal numbers and threads would change."""
    small = float((torch.tensor(1e-40) * 1).item())
    metrics = {"denormal": small, "threads": float(torch.get_num_threads())}
    yield [dataclasses.replace(toy_record(toy, "one", trial), metrics=metrics) for trial in toy.trials]


def compared(folder):
    """All records without their timing, in an order that does not depend on the jobs; NaN as text."""
    records = [dataclasses.replace(one, timing={}) for one in Journal(folder).read()]
    return sorted((one.line() for one in records), key=str)


def in_process(folder, **rest):
    run_all(toys(folder), run_toy, folder, **{"jobs": 1, "progress": False} | rest)


# In this process


def test_records_of_all_work_are_written_and_nothing_is_left(tmp_path):
    in_process(tmp_path)
    assert len(Journal(tmp_path).read()) == 10 * 2 * 3
    assert toys(tmp_path) == []
    assert len(toys(tmp_path, trials=4)) == 10


def test_the_largest_piece_comes_first(tmp_path):
    work = [Toy("small", (0,), cost=1), Toy("large", (0,), cost=5), Toy("middle", (0,), cost=2)]
    run_all(work, run_toy, tmp_path, jobs=1, progress=False)
    assert list(dict.fromkeys(one.dataset for one in Journal(tmp_path).read())) == ["large", "middle", "small"]


def test_what_was_done_before_a_failure_stays(tmp_path):
    def run(toy):
        if toy.dataset == "last":
            raise ZeroDivisionError
        yield from run_toy(toy)

    with pytest.raises(ZeroDivisionError):
        run_all([Toy("first", (0,), cost=2), Toy("last", (0,))], run, tmp_path, jobs=1, progress=False)
    assert {one.dataset for one in Journal(tmp_path).read()} == {"first"}


@examples(25)
@given(cut=st.floats(0, 1))
def test_a_run_that_was_cut_off_at_any_byte_goes_on_to_the_same_records(tmp_path_factory, cut):
    whole, cut_off = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("cut")
    in_process(whole)
    data = (whole / RECORDS).read_bytes()
    (cut_off / RECORDS).write_bytes(data[: int(cut * len(data))])
    in_process(cut_off)
    assert compared(cut_off) == compared(whole)


@pytest.mark.parametrize("given", [{}, {"threads": 3}])
def test_arithmetic_is_put_back(tmp_path, given):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_all([Toy("a", (0,))], run_arithmetic, tmp_path, jobs=1, progress=False, **given)
        assert torch.get_num_threads() == 2
        assert torch.tensor(1e-40) * 1 > 0
    finally:
        torch.set_num_threads(threads)
    (found,) = Journal(tmp_path).read()
    assert found.metrics == {"denormal": 0.0, "threads": given.get("threads", 1)}


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_told_at_once(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Expected to write records to the folder .*file.*, but got: .*"):
        run_all([Toy("a", (0,))], None, tmp_path / folder, jobs=1, progress=False)


# The bar


def shown(folder, work, **rest):
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        run_all(work, run_toy, folder, **{"jobs": 1, "progress": True} | rest)
    return text.getvalue()


def test_the_bar_tells_share_time_and_what_is_left(tmp_path):
    text = shown(tmp_path, [Toy("a", (0,), 0.15, cost=3), Toy("b", (0,), 0.15)])
    assert re.search(r"  0%\|.*\| 00:00<\?, 2 left: toy a", text)
    assert re.search(r" 75%\|.*\| 00:00<00:00, 1 left: toy b", text)
    assert "100%" in text


def test_there_is_no_bar_when_it_is_not_wanted_or_nothing_is_left(tmp_path):
    assert shown(tmp_path, [Toy("a", (0,))], progress=False) == ""
    assert shown(tmp_path, []) == ""


# In processes of its own


def environment(**more):
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).parent), str(Path(__file__).parents[1])])
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | more


def driver(tmp_path, folder, jobs, pause, **rest):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    command = [sys.executable, str(script), str(folder), str(jobs), str(pause)]
    return subprocess.Popen(command, env=environment(), text=True, **rest)


def test_killed_ten_times_a_run_ends_with_the_records_of_an_undisturbed_one(tmp_path):
    """Every run is a process of its own, killed at a random moment of the time that the whole would take."""
    pause, chance = 0.01, random.Random(0)
    (tmp_path / "whole").mkdir()
    in_process(tmp_path / "whole")
    folder, before = tmp_path / "killed", []
    server = driver(tmp_path, folder, 1, pause, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline() == "ready\n"
        for _ in range(KILLS):
            server.stdin.write("run\n")
            server.stdin.flush()
            child = int(server.stdout.readline())
            time.sleep(chance.uniform(0, 3 * pause))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            assert int(server.stdout.readline()) in (0, signal.SIGKILL)
            before.append(len(Journal(folder).read()))
        server.stdin.write("run\n")
        server.stdin.flush()
        server.stdout.readline()
        assert server.stdout.readline() == "0\n"
    finally:
        server.kill()
        server.communicate()
    assert before == sorted(before)
    assert before[0] < 10 * 2 * 3
    assert compared(folder) == compared(tmp_path / "whole")


def children(parent):
    """Processes whose parent this is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, rest = path.read_text().rsplit(")", 1)
            if int(rest.split()[1]) == parent:
                found.append(int(number.split()[0]))
    return found


def lives(process):
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=str)
def test_workers_end_with_their_parent(tmp_path, how):
    """Whatever ends the parent alone: pieces of a minute each are given up within seconds."""
    folder = tmp_path / "out"
    parent = driver(tmp_path, folder, 2, 60, stderr=subprocess.PIPE)
    try:
        until(lambda: len(children(parent.pid)) >= 2 + 1)  # the tracker of shared resources is the third
        time.sleep(3)
        below = children(parent.pid)
        parent.send_signal(how)
        parent.communicate(timeout=30)
        until(lambda: not any(map(lives, below)), 30)
    finally:
        parent.kill()
        parent.communicate()


@pytest.mark.slow
def test_two_jobs_give_the_records_of_one(tmp_path):
    for jobs in (1, 2):
        in_process(tmp_path / str(jobs), jobs=jobs)
        rest = {"jobs": jobs, "threads": 2, "progress": False}
        run_all([Toy("a", (0, 1)), Toy("b", (0,))], run_arithmetic, tmp_path / f"a{jobs}", **rest)
    assert compared(tmp_path / "1") == compared(tmp_path / "2")
    assert compared(tmp_path / "a1") == compared(tmp_path / "a2")


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told_in_a_sentence(tmp_path):
    with pytest.raises(
        SplitPointError, match=r"^Expected all processes to live, but one was killed, .* with fewer jobs\."
    ):
        run_all([Toy("a", (0,)), Toy("b", (0,))], run_work_that_dies, tmp_path, jobs=2, progress=False)


# The command


def command(*argv, **rest):
    line = [sys.executable, "-m", "splitpoint.cli", "bench", "uci", *map(str, argv)]
    return subprocess.Popen(line, env=environment(), text=True, start_new_session=True, **rest)


@needs_proc
@pytest.mark.slow
def test_the_command_killed_ten_times_ends_with_the_records_of_an_undisturbed_run(tmp_path):
    try:
        find("uci/yacht.npz")
    except DataError:
        pytest.skip("SPLITPOINT_DATA names no folder with uci/yacht.npz")
    methods = ("gaussian", "mc_dropout", "evidential_regression", "sqr_oc", "laplace", "splitpoint_paper")
    grid = ("--datasets", "yacht", "--methods", *methods, "--trials", 2, "--epochs", 20, "--quiet")
    began = time.monotonic()
    whole = command(*grid, "--out", tmp_path / "whole", stdout=subprocess.PIPE)
    assert whole.communicate()[0].startswith("5 pieces of work done. ")
    took, chance = time.monotonic() - began, random.Random(0)
    for number in range(KILLS):
        run = command(*grid, "--out", tmp_path / "killed", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.5 * took, took))
        below = children(run.pid)
        (run.kill if number % 2 else lambda run=run: os.killpg(run.pid, signal.SIGKILL))()
        run.wait()
        until(lambda below=below: not any(map(lives, below)), 30)
    assert command(*grid, "--out", tmp_path / "killed", stdout=subprocess.DEVNULL).wait() == 0
    assert len(compared(tmp_path / "whole")) == 2 * len(methods)
    assert compared(tmp_path / "killed") == compared(tmp_path / "whole")


def test_a_set_that_is_missing_is_told_before_a_folder_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPLITPOINT_DATA", str(tmp_path / "empty"))
    assert cli.main(["bench", "uci", "--out", str(tmp_path / "out"), "--datasets", "yacht"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("splitpoint: Expected to find uci/yacht.npz, but ")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
