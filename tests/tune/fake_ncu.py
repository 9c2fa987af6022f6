"""A stand-in for ncu: a program of its name that prints what is in the folder ``ncu`` here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

PRINTED = Path(__file__).parent / "ncu"

_PROGRAM = """#!{python}
import os, subprocess, sys, time
log = sys.argv[sys.argv.index("--log-file") + 1]
command = sys.argv[sys.argv.index({python!r}):]
{body}
"""


def printed(name: str) -> str:
    return (PRINTED / f"{name}.txt").read_text()


def prints(name: str) -> str:
    """The body of a stand-in that prints this."""
    return f"open(log, 'w').write(open({str(PRINTED / name)!r} + '.txt').read())"


def put(monkeypatch: Any, folder: Path, body: str) -> None:
    """Put a stand-in on the PATH. Its body knows `log`, the file to print to, and `command`, what
    it is to watch."""
    file = folder / "bin" / "ncu"
    file.parent.mkdir(exist_ok=True)
    file.write_text(_PROGRAM.format(python=sys.executable, body=body))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")
