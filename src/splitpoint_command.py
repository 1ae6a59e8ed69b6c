"""The ``splitpoint`` command as a shell starts it: Ctrl-C ends it in one line, while it still imports PyTorch too.

It stands beside the package, since whatever stands inside is preceded by the imports of the package.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of commands that were ended by Ctrl-C."""


def main() -> int:
    """Import and run the command."""
    before = signal.signal(signal.SIGINT, _leave)
    from splitpoint.cli import main as command

    signal.signal(signal.SIGINT, before)
    try:
        return command()
    except KeyboardInterrupt:
        sys.stderr.write("splitpoint: interrupted\n")
        return INTERRUPTED


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """End at once: an error that went through half an import might come out as another one."""
    os.write(2, b"splitpoint: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
