"""The command line, one file a command group.

Nothing here is imported by the library. Commands import what they need when they run, so that
``tilewright archs`` costs what it uses.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """The console script. Exit codes: see `tilewright.cli.errors`."""
    with suppress(FileNotFoundError):  # the folder was deleted
        _leave_the_folder()
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


def _leave_the_folder() -> None:
    """Import nothing from the current folder, which may be anybody's, unless PYTHONPATH names it.
    ``python -m`` puts it first on the path, and so does an empty part of PYTHONPATH."""
    here = Path().resolve()
    if here in [Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(":") if p]:
        return
    standard = str(Path(os.__file__).parent)  # installed packages come after it
    before = sys.path.index(standard) if standard in sys.path else len(sys.path)
    sys.path[:before] = [p for p in sys.path[:before] if Path(p).resolve() != here]
