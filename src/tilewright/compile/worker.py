"""The compiler's child process, one kernel a request."""

from __future__ import annotations

import errno
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from subprocess import CalledProcessError

from tilewright.child import Blob, Message, serve
from tilewright.compile.compiler import Job, compile_kernel
from tilewright.compile.key import sources_read
from tilewright.ops.nouns import KernelSource

MARK = "--- next kernel ---"
"""Written to standard error before each kernel, so that its messages can be told apart."""
_LONGEST = 2000
_imported: dict[str, tuple[int, int]] = {}
"""Files that modules were imported from, as they were then: see `sources_read`."""
_archs: set[str] = set()
"""What was compiled for: one architecture, see `compilers`."""


def handle(message: Message, _blobs: list[bytes]) -> tuple[Message, Sequence[Blob]]:
    """Answer ``{"job": …}`` with ``{"kernel": …, "kinds": …}`` and the files, or with
    ``{"error": text, "disk_full": bool}``, or with ``{"stale": true}`` if a file was written since
    a module was imported from it: another child must do it."""
    print(MARK, file=sys.stderr, flush=True)
    fields = message["job"]
    job = Job(**{**fields, "source": KernelSource(**fields["source"])})
    _archs.add(job.arch)
    assert len(_archs) == 1, f"one compiler for {' and '.join(sorted(_archs))}"
    try:
        stamps, digest = sources_read(*job.source.modules)
        if any(_imported.get(path, stamp) != stamp for path, stamp in stamps.items()):
            return {"stale": True}, ()
        if digest != job.module_digest:
            names = " or ".join(job.source.modules)
            return {
                "error": f"the source of {names} changed during the build, or the "
                "child finds another file than its parent",
                "disk_full": False,
            }, ()
        _imported.update(stamps)
        kernel, files = compile_kernel(job)
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        return {"error": describe(error), "disk_full": full}, ()
    return {"kernel": asdict(kernel), "kinds": list(files)}, list(files.values())


def describe(error: BaseException) -> str:
    """The error and the causes that add to it, at most about 2000 characters."""
    words = ""
    cause: BaseException | None = error
    while cause is not None:
        said = str(cause).partition("\nRepro command")[0].strip()  # of a file that is gone
        if not words or (said not in words and not isinstance(cause, CalledProcessError)):
            words += f"{type(cause).__name__}: {said}\n"
        cause = cause.__cause__ or cause.__context__
    words = words.strip()
    if len(words) <= _LONGEST:
        return words
    return f"{words[: _LONGEST // 2]}\n[…]\n{words[-_LONGEST // 2 :]}"


def main() -> None:
    import triton  # noqa: F401 - before the next line, so that its compiled modules are used

    # A module edited twice within a second, to the same size, matches its stale bytecode:
    # kernels are compiled from their source each time.
    sys.pycache_prefix = tempfile.mkdtemp()  # in the scratch folder, which the parent removes
    serve(handle)
