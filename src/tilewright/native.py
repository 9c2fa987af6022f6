"""C and C++ code of this package, compiled on first use by the system's compiler. The result is
kept in the cache folder (see `tilewright.home`) under a digest of its source."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tilewright import home
from tilewright.child import program
from tilewright.errors import NoCompiler
from tilewright.files import WRITE, check_own, make_own, replacing


def compiled(
    source: Path,
    included: Sequence[Path] = (),
    what: str = "C code",
    folder: Path | None = None,
    arguments: Sequence[str] = (),
) -> Path:
    """The shared library of `source`, in C or C++, which includes the files `included`.

    what: it is, for errors.
    folder: where the compiler looks for headers, besides its own places and Python's.
    arguments: further ones of the compiler. They tell one library from another.

    Raises `NoCompiler` if it cannot be compiled or kept, and `StoreError` if others could have
    written it.
    """
    text = b"".join(file.read_bytes() for file in (source, *included))
    tag = sysconfig.get_config_var("EXT_SUFFIX")
    told = "\0".join((str(tag), *arguments))
    digest = hashlib.sha256(text + told.encode()).hexdigest()[:16]
    built = home.cache().absolute() / digest / f"{source.stem}{tag}"
    try:
        if not os.path.lexists(built):
            _compile(source, built, what, folder, arguments)
        for path in (built.parent, built):  # anybody's code otherwise
            check_own(path, path.lstat(), WRITE)
    except OSError as error:
        raise cannot_keep(built, what, error) from None
    return built


def cannot_keep(built: Path, what: str, error: Exception) -> NoCompiler:
    """The error for a library that cannot be written or read."""
    return NoCompiler(
        f"{what} cannot be kept in {built.parent} ({error}): name a folder that can be written in "
        f"{home.VARIABLE}"
    )


_COMPILERS = {
    ".c": ("C", "CC", ("cc", "gcc", "clang"), "gcc"),
    ".cpp": ("C++", "CXX", ("c++", "g++", "clang++"), "g++"),
}
"""By the end of a source's name: the language, the variable that names a compiler, those that are
looked for, and Debian's package."""


def _compile(
    source: Path, target: Path, what: str, folder: Path | None, arguments: Sequence[str]
) -> None:
    language, variable, names, package = _COMPILERS[source.suffix]
    named = {"CC": os.environ.get("CC", ""), "CXX": os.environ.get("CXX", "")}
    compiler = shlex.split(named[variable])
    if not compiler:
        found = next(filter(None, map(program, names)), None)
        if found is None:
            raise NoCompiler(
                f"{what} needs a {language} compiler once, and there is no {', '.join(names[:-1])} "
                f"or {names[-1]}: install one (Debian: apt install {package} python3-dev) or name "
                f"one in {variable}"
            )
        compiler = [found]
    elif os.sep in compiler[0]:
        compiler[0] = str(Path(compiler[0]).absolute())
    make_own(home.cache())
    make_own(target.parent)
    # The compiler opens its output by name, so in a folder that nobody else can change.
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, target.name)
        folders = [sysconfig.get_paths()["include"], *([] if folder is None else [str(folder)])]
        include = [f"-I{each}" for each in folders]
        command = [*compiler, "-O2", "-shared", "-fPIC", *include, str(source), *arguments]
        try:
            done = subprocess.run(
                [*command, "-o", str(built)],
                capture_output=True,
                text=True,
                check=False,
                cwd=scratch,  # empty: a compiler looks for headers and tools in the current folder
            )
        except OSError as error:
            raise NoCompiler(
                f"the {language} compiler '{compiler[0]}' does not start: {error}"
            ) from None
        if done.returncode:
            hint = (
                "; install Python's headers (Debian: apt install python3-dev)"
                if "Python.h" in done.stderr
                else ""
            )
            raise NoCompiler(f"compiling {what} failed{hint}: {done.stderr.strip()[:500]}")
        with replacing(target, mode=0o700) as file:
            file.write(built.read_bytes())
