"""Small files written whole or not at all, and read with suspicion."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path

from tilewright.errors import BadFile, StoreError, shown
from tilewright.reading import regular

_PREFIX = "tilewright-"
_STALE = 3600.0
"""Seconds after which a temporary file's writer is taken for dead."""


def write_whole(path: Path, data: bytes, temporary: Path) -> None:
    """Write `data` to `path` so that any reader, now or after a crash, sees all of it or none.

    `temporary` is a folder on the same file system. Raises `StoreError`, leaving nothing behind.
    """
    written: Path | None = None
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=_PREFIX, dir=temporary)
        written = Path(name)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(fd, 0o644)
            os.fsync(fd)
        written.replace(path)
        written = None
    except OSError as error:
        raise cannot_write(path, error) from error
    except ValueError as error:  # a NUL or half a surrogate pair in the path
        raise StoreError(f"cannot write {shown(str(path))}: {error}") from error
    finally:
        if written is not None:
            with contextlib.suppress(OSError):
                written.unlink()


def cannot_write(path: Path, error: OSError) -> StoreError:
    """The one clear error for a failed write."""
    hint = {
        errno.ENOSPC: "free some space or use another store; what is stored already is intact",
        errno.EDQUOT: "free some quota or use another store; what is stored already is intact",
    }.get(
        error.errno or 0,
        "make it writable, or use another place (for the store: TILEWRIGHT_STORE, or Store(path))",
    )
    return StoreError(f"cannot write {path}: {error.strerror or error}; {hint}")


def read_whole(path: Path, limit: int) -> bytes | None:
    """The content of a regular file of at most `limit` bytes; None if there is no such file.

    Raises `BadFile` for anything else (too large, a pipe, a folder) and `StoreError` when the
    system refuses.
    """
    try:
        return regular(path, limit)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, BadFile):
            raise
        raise StoreError(f"cannot read {shown(str(path))}: {error}") from error


def clear_stale(temporary: Path) -> None:
    """Remove what killed writers of `write_whole` left in `temporary`, and nothing else."""
    with contextlib.suppress(OSError):
        for path in temporary.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE:
                    path.unlink()
