"""Compiles and loads `launcher.c`, the few lines of a launch that Python is too slow for.

The system's C compiler builds it once for each Python version. The result is kept in the cache
folder (see `tilewright.home`) under a digest of its source. Where it cannot be built,
`python_launcher` does the same, more slowly.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shlex
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from tilewright import home
from tilewright.child import program
from tilewright.errors import NoCompiler
from tilewright.files import WRITE, check_own, make_own, replacing
from tilewright.runtime import python_launcher
from tilewright.runtime.python_launcher import (
    NEEDS_HANDLE,
    NEEDS_MAPS,
    NOT_KNOWN,
    OVERLAPS,
    UNSUITABLE,
)

__all__ = [
    "NEEDS_HANDLE",
    "NEEDS_MAPS",
    "NOT_KNOWN",
    "OVERLAPS",
    "UNSUITABLE",
    "compiled",
    "launcher",
]

log = logging.getLogger("tilewright")

_SOURCE, *_INCLUDED = (
    Path(__file__).with_name(name)
    for name in ("launcher.c", "describe.h", "repeat.h", "matmul.h", "graph.h", "solution.h")
)


@cache
def launcher() -> ModuleType:
    """The compiled module; where it cannot be compiled, the same in Python, which a warning says
    once. Raises `StoreError` if others could have written the compiled one."""
    try:
        return compiled()
    except NoCompiler as error:
        log.warning("%s; until then a launch takes some 10 µs more, through Python", error)
        return python_launcher


def compiled() -> ModuleType:
    """The compiled module. Raises `NoCompiler` if it cannot be compiled, kept or loaded, and
    `StoreError` if others could have written it."""
    source = b"".join(file.read_bytes() for file in (_SOURCE, *_INCLUDED))
    tag = sysconfig.get_config_var("EXT_SUFFIX")
    digest = hashlib.sha256(source + str(tag).encode()).hexdigest()[:16]
    built = home.cache().absolute() / digest / f"launcher{tag}"
    try:
        if not os.path.lexists(built):
            _compile(built)
        for path in (built.parent, built):  # anybody's code otherwise
            check_own(path, path.lstat(), WRITE)
        spec = importlib.util.spec_from_file_location("launcher", built)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (OSError, ImportError) as error:
        raise NoCompiler(
            f"the compiled launcher cannot be kept in {built.parent} ({error}): name a folder that "
            f"can be written in {home.VARIABLE}"
        ) from None
    return module


def _compile(target: Path) -> None:
    compiler = shlex.split(os.environ.get("CC", ""))
    if not compiler:
        found = next(filter(None, map(program, ("cc", "gcc", "clang"))), None)
        if found is None:
            raise NoCompiler(
                "quick launches need a C compiler once, and there is no cc, gcc or clang: install "
                "one (Debian: apt install gcc python3-dev) or name one in CC"
            )
        compiler = [found]
    elif os.sep in compiler[0]:
        compiler[0] = str(Path(compiler[0]).absolute())
    make_own(home.cache())
    make_own(target.parent)
    # The compiler opens its output by name, so in a folder that nobody else can change.
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, target.name)
        include = sysconfig.get_paths()["include"]
        command = [*compiler, "-O2", "-shared", "-fPIC", f"-I{include}", str(_SOURCE)]
        try:
            done = subprocess.run(
                [*command, "-o", str(built)],
                capture_output=True,
                text=True,
                check=False,
                cwd=scratch,  # empty: a compiler looks for headers and tools in the current folder
            )
        except OSError as error:
            raise NoCompiler(f"the C compiler '{compiler[0]}' does not start: {error}") from None
        if done.returncode:
            hint = (
                "; install Python's headers (Debian: apt install python3-dev)"
                if "Python.h" in done.stderr
                else ""
            )
            raise NoCompiler(f"compiling the launcher failed{hint}: {done.stderr.strip()[:500]}")
        with replacing(target, mode=0o700) as file:
            file.write(built.read_bytes())
