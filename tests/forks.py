"""Processes that tests fork off."""

import os
import signal
import warnings
from contextlib import contextmanager


def forked(work):
    """The number of a process that does some work and ends with 0 where that is done."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of PyTorch, which children do not use
        process = os.fork()
    if not process:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return process


def ended(process):
    """Whether a process ended well; waits for it."""
    return os.waitpid(process, 0)[1] == 0


@contextmanager
def running(work):
    """A process that does some work; it is killed at the end."""
    process = forked(work)
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
