"""The command line: one file for each group of commands.

The library imports nothing from here. Commands import modules when they run, so that
``tilewright archs`` loads only the modules it uses.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from tilewright.cli.codes import BROKEN_PIPE, INTERRUPTED


def main() -> None:
    """Entry point of the console script. Exit codes: see `tilewright.cli.errors`."""
    try:
        _fill_streams()
        with suppress(FileNotFoundError):  # the folder was deleted
            _leave_the_folder()
        _run()
    except KeyboardInterrupt:  # for example, while modules are imported
        with suppress(OSError):
            sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


def _run() -> None:
    from tilewright.cli import errors, output
    from tilewright.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a stand-in for a real stream
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    output.clean_log()
    try:
        try:
            app(prog_name="tilewright")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has enough
        errors.discard_output()
        sys.exit(BROKEN_PIPE)
    except OSError as error:  # for example, a full disk
        errors.discard_output()
        output.say(f"error: standard output: {errors.said(error)}", err=True)
        sys.exit(errors.FAILED)


def _fill_streams() -> None:
    """Open a null device for each standard stream that the caller closed (``>&-``). Otherwise the
    next file opened would get the number of the closed stream, and receive the printed text."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, fd == number)
            setattr(sys, name, os.fdopen(fd, "w" if number else "r"))


def _leave_the_folder() -> None:
    """Remove the current folder from the import path, unless PYTHONPATH names it: anybody may own
    the folder. ``python -m`` puts it first on the path, and so does an empty part of PYTHONPATH."""
    here = Path().resolve()
    if here in [Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(":") if p]:
        return
    standard = str(Path(os.__file__).parent)  # installed packages come after it
    before = sys.path.index(standard) if standard in sys.path else len(sys.path)
    sys.path[:before] = [p for p in sys.path[:before] if Path(p).resolve() != here]
