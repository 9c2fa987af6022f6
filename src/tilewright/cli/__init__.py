"""The command line, one file a command group.

Nothing here is imported by the library. Commands import what they need when they run, so that
``tilewright archs`` costs what it uses.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from tilewright.cli.codes import BROKEN_PIPE, INTERRUPTED


def main() -> None:
    """The console script. Exit codes: see `tilewright.cli.errors`."""
    try:
        _fill_streams()
        with suppress(FileNotFoundError):  # the folder was deleted
            _leave_the_folder()
        _run()
    except KeyboardInterrupt:  # while modules are imported, say
        with suppress(OSError):
            sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


def _run() -> None:
    from tilewright.cli import errors, output
    from tilewright.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # whatever stands in for a real stream
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
    except OSError as error:  # a full disk, say
        errors.discard_output()
        output.say(f"error: standard output: {errors.said(error)}", err=True)
        sys.exit(errors.FAILED)


def _fill_streams() -> None:
    """Give the standard streams that the caller closed (``>&-``) a file that holds nothing: the
    next file to be opened would take a closed one's number, and get what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, fd == number)
            setattr(sys, name, os.fdopen(fd, "w" if number else "r"))


def _leave_the_folder() -> None:
    """Import nothing from the current folder, which may be anybody's, unless PYTHONPATH names it.
    ``python -m`` puts it first on the path, and so does an empty part of PYTHONPATH."""
    here = Path().resolve()
    if here in [Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(":") if p]:
        return
    standard = str(Path(os.__file__).parent)  # installed packages come after it
    before = sys.path.index(standard) if standard in sys.path else len(sys.path)
    sys.path[:before] = [p for p in sys.path[:before] if Path(p).resolve() != here]
