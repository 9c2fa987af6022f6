"""The compiler's child processes. A build takes those that it needs, and leaves a few, idle, for
the next: starting one takes a second, in which it could compile several kernels.

Each compiles for one architecture. Up to Triton 3.6 a process converts fp8 for every architecture
as the first one needs it (a table that is made once; pull request 9364 of Triton mends it). In a
process that had compiled for gfx942, kernels for gfx950 read e4m3fnuz as if it were e4m3fn, and
nothing said so: emulation found the results wrong.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from tilewright import garbage
from tilewright.child import Child, import_path
from tilewright.compile.compiler import INHERITED, environment
from tilewright.scratch import scratch

WORKER = "tilewright.compile.worker"
SCRATCH = "tilewright-build-"
"""The prefix of the folders for the compiler's temporary files."""

KEPT = 2
"""Compilers that wait for the next build at most; each holds about 200 MB."""
KEPT_SECONDS = 30.0
"""How long one waits."""


@dataclass(slots=True, eq=False)
class Compiler:
    """A child process that compiles, and its folder for temporary files. For one thread at a time,
    except `interrupt`. Raises `OSError` if the folder cannot be made.

    arch: the name of the architecture that it compiles for.
    circumstances: what the child was started with, and cannot change.
    """

    arch: str
    child: Child = field(init=False)
    circumstances: object = field(init=False)
    folder: str = field(init=False)
    idle_since: float = field(init=False, default=0.0)
    _stack: ExitStack = field(init=False, default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.circumstances = _circumstances()
        self.folder = self._stack.enter_context(scratch(SCRATCH))
        try:
            self.child = Child(WORKER, environment(self.folder))
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """End the child, and remove its folder."""
        self.child.kill()
        self._stack.close()


def take(arch: str, fresh: bool = False) -> Compiler:
    """A compiler for an architecture, for the caller alone: an idle one, or a new one. fresh: a new
    one."""
    if not fresh:
        now = _circumstances()
        with _LOCK:
            for compiler in reversed(_IDLE):
                fits = (compiler.arch, compiler.circumstances) == (arch, now)
                if fits and compiler.child.alive():
                    _IDLE.remove(compiler)
                    return compiler
    return Compiler(arch)


def leave(compiler: Compiler) -> None:
    """Give back a compiler that has answered its last request."""
    compiler.idle_since = time.monotonic()
    with _LOCK:
        _IDLE.append(compiler)
        too_many = _IDLE[:-KEPT]
        del _IDLE[:-KEPT]
    for one in too_many:
        one.close()
    timer = threading.Timer(KEPT_SECONDS, _end_old)
    timer.daemon = True
    timer.start()


def end_idle() -> None:
    """End the idle compilers."""
    with _LOCK:
        ended = _IDLE[:]
        _IDLE.clear()
    for one in ended:
        one.close()


def _end_old() -> None:
    garbage.begin_thread()
    oldest = time.monotonic() - KEPT_SECONDS
    with _LOCK:
        ended = [one for one in _IDLE if one.idle_since <= oldest]
        for one in ended:
            _IDLE.remove(one)
    for one in ended:
        one.close()


def _circumstances() -> object:
    """Where a child would import from, its environment, and where its folder would be."""
    kept = {name: value for name, value in os.environ.items() if name in INHERITED}
    return import_path(), kept, tempfile.gettempdir()


_IDLE: list[Compiler] = []
_LOCK = threading.Lock()


def _forked() -> None:
    """The idle compilers are the parent's."""
    global _LOCK
    _IDLE.clear()
    _LOCK = threading.Lock()


atexit.register(end_idle)
os.register_at_fork(after_in_child=_forked)
