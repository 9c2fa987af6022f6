"""The command line, one file a command group.

Nothing here is imported by the library. Commands import what they need when they run, so that
``tilewright archs`` costs what it uses.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def main() -> None:
    """The console script. Exit codes: see `tilewright.cli.errors`."""
    from tilewright.cli.app import app
    from tilewright.cli.errors import BROKEN_PIPE

    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # whatever stands in for a real stream
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        try:
            app(prog_name="tilewright")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python flushes again at exit, so give it a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
