"""Helper processes: a child Python that answers requests over its pipes.

The compiler can abort, and the interpreter must be switched on before Triton is imported, so both
run in children. A child runs a module's `main` in a fresh Python, never by fork or by
`multiprocessing`'s spawn, which would import the user's script again. A message is one JSON
document, followed by optional binary blobs. A child dies with its parent. It can be killed at any
time; only the current request is lost.

A child imports from the same places as its parent, in the same order, and from nowhere else. In
particular it does not import from the current folder, which ``python -m`` would put first.

Frame: 4-byte little-endian header length, JSON header, then the blobs. The header lists their sizes
under ``"blobs"``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from tilewright import garbage, variables

Message = dict[str, Any]
Blob = bytes | bytearray | memoryview
_LENGTH = struct.Struct("<I")
_HOME = str(Path(__file__).absolute().parents[1])

KILL_SECONDS = 60.0
"""How long to wait for a killed child that a driver holds (on a faulted GPU, for example) before
leaving it to end alone."""

KILLED = (-signal.SIGKILL, -signal.SIGTERM)
"""Return codes of a child that somebody killed, or that the system killed because memory ran out.
The current request may not be the cause."""


class ChildDied(Exception):
    """The child ended during a request; `returncode` is negative for a signal."""

    def __init__(self, returncode: int, stderr_tail: str) -> None:
        self.returncode = returncode
        self.stderr_tail = stderr_tail
        super().__init__(describe_exit(returncode))


class ChildTimeout(Exception):
    """The child did not answer in time and was killed."""


class Ending(Exception):
    """The interpreter is ending: no child can be started any more."""


def describe_exit(returncode: int) -> str:
    """``"killed by SIGABRT"`` or ``"exited with code 3"``."""
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-returncode).name}"
    return f"exited with code {returncode}"


class Child:
    """One child process. Not thread-safe: give each thread its own, or hold a lock.

    module: the child runs its `main`.
    env: changes to the inherited environment; None removes a variable.
    """

    def __init__(self, module: str, env: Mapping[str, str | None] | None = None) -> None:
        changed = {**os.environ, **(env or {}), variables.PARENT: str(os.getpid())}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        start = partial[subprocess.Popen[bytes]](
            subprocess.Popen,
            command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={name: value for name, value in changed.items() if value is not None},
            start_new_session=True,  # so that a Ctrl-C at the terminal reaches only the parent
        )
        try:
            started = _spawner().submit(_started, start)
        except RuntimeError as error:
            raise Ending(str(error)) from None
        self._process = started.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def request(
        self,
        message: Message,
        blobs: Sequence[Blob] = (),
        timeout: float | None = None,
    ) -> tuple[Message, list[bytes]]:
        """Send one request and wait for its answer, at most `timeout` seconds.

        Raises `ChildDied` if the child ends instead of answering, and `ChildTimeout` (after killing
        it) if the answer does not come in time. In both cases this child cannot be used again.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            write_frame(self._process.stdin, message, blobs)
            return read_frame(self._process.stdout, deadline)
        except TimeoutError:
            self.kill()
            raise ChildTimeout(f"no answer within {timeout:g} s") from None
        except (EOFError, BrokenPipeError, ConnectionResetError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            tail = self.stderr_tail()
            self.kill()
            code = self._process.returncode
            raise ChildDied(-signal.SIGKILL if code is None else code, tail) from None

    def stderr_tail(self, size: int = 16000) -> str:
        """The last `size` bytes that the child wrote to its standard error."""
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, end - size))
        return self._stderr.read().decode(errors="replace")

    def interrupt(self) -> None:
        """End the child, from any thread. A `request` in progress raises `ChildDied`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the child and every process that it started (the assembler, for example). If a driver
        holds the child, it is left to end when it can."""
        self.interrupt()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=KILL_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    close = kill

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


def command(module: str) -> list[str]:
    """The command of a Python that runs the function `main` of `module` and imports from this
    process's `import_path`. Arguments for `main` may be appended."""
    # `-c` puts the current folder first, so only built-in modules may be imported before the path
    # is set. PYTHONSAFEPATH would need Python 3.11. PYTHONPATH cannot name a folder with a colon
    # in its name, and `site` would also find the files of the user's script.
    start = f"import sys; sys.path[:] = {import_path()!r}; from {module} import main; main()"
    return [sys.executable, "-c", start]


def import_path() -> list[str]:
    """The folders that this process imports from, followed by Tilewright's own folder. The current
    folder is included only if `sys.path` has it, as in an interactive session."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    # Entries that are not folders (an archive, the name of an import hook) stay as they are.
    folders = [str(Path(entry).absolute()) if Path(entry).is_dir() else entry for entry in path]
    return list(dict.fromkeys((*filter(None, folders), _HOME)))


def program(name: str, path: str | None = None) -> str | None:
    """The absolute path of the program `name`; None if it is not found.

    path: the folders to search, separated as in PATH (default: the PATH). Entries that mean the
        current folder are ignored.
    """
    parts = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, parts)))


def serve(handle: Callable[[Message, list[bytes]], tuple[Message, Sequence[Blob]]]) -> None:
    """A child's main loop: answer requests until the parent closes the pipe or dies.

    Anything that the work prints goes to standard error, so that it cannot corrupt the answers.
    """
    _die_with_parent()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            message, blobs = read_frame(sys.stdin.buffer, None)
        except EOFError:
            return
        write_frame(answers, *handle(message, blobs))


def write_frame(pipe: Any, message: Message, blobs: Sequence[Blob] = ()) -> None:
    """Write one message and its blobs."""
    sizes = [memoryview(b).nbytes for b in blobs]
    header = json.dumps({**message, "blobs": sizes}).encode()
    pipe.write(_LENGTH.pack(len(header)) + header)
    for blob in blobs:
        pipe.write(blob)
    pipe.flush()


def read_frame(pipe: BinaryIO | Any, deadline: float | None) -> tuple[Message, list[bytes]]:
    """Read one message. Raises `EOFError` at the end, and for bytes that are not a message, because
    the beginning of the next message is then unknown. Raises `TimeoutError` past `deadline` (on
    `time.monotonic`'s clock)."""
    fd = pipe.fileno()
    (length,) = _LENGTH.unpack(_read(fd, _LENGTH.size, deadline))
    try:
        message: Message = json.loads(_read(fd, length, deadline))
        sizes = message.pop("blobs")
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"blobs of {sizes} bytes")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise EOFError(f"the other side wrote something that is not a message: {error}") from error
    return message, [_read(fd, size, deadline) for size in sizes]


def _read(fd: int, size: int, deadline: float | None) -> bytes:
    # Reads the descriptor, not the buffered file: select() cannot see the contents of a buffer.
    parts: list[bytes] = []
    while size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise TimeoutError
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _started(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    garbage.begin_thread()  # a driver may have been opened since the thread began
    return start()


@cache
def _spawner() -> ThreadPoolExecutor:
    """The single thread that starts children. Linux ties "die with the parent" to the thread that
    forked, and this thread lives as long as the process."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="tilewright-spawner")


os.register_at_fork(after_in_child=_spawner.cache_clear)


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, for whatever reason."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != int(os.environ.get(variables.PARENT, os.getppid())):
        os._exit(1)  # the parent died before we asked
