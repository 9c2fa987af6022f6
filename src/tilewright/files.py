"""Files written whole or not at all, and small files that only this user may have written.

Every file that others may read while it is written goes through `replacing`. A folder that others
can write to may change at any time: a name in it may become a link to anybody's file. So a folder
is opened once, files are made in it through its descriptor, and a file is written through the
descriptor that made it. No name is opened twice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shlex
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tilewright.errors import BadFile, StoreError, shown
from tilewright.reading import regular

_PREFIX = "tilewright-"
_STALE = 3600.0
"""Seconds after which a temporary file's writer is taken for dead."""

READ_OR_WRITE, WRITE = 0o077, 0o022
"""Permissions that `check_own` denies to everybody but the owner."""

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""Opens a folder to find names in it, which needs no permission to list it."""


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A new file, open for the body to write, which becomes `path` when the body ends without an
    error. The body must not close it.

    Any reader, now or after a crash, sees all of the new content or the file that was there before.

    mode: the permissions of `path`.

    Raises `OSError`, and `ValueError` for a path that cannot be (a NUL, half a surrogate pair).
    Whatever is raised, nothing is left behind.
    """
    with (
        closing(os.open(path.parent, FOLDER)) as folder,
        replacing_in(folder, path.name, folder, mode) as file,
    ):
        yield file


@contextlib.contextmanager
def replacing_in(target: int, name: str, temporary: int, mode: int = 0o644) -> Iterator[BinaryIO]:
    """As `replacing`: the file is made in the folder `temporary` and becomes `name` in the folder
    `target`. Both are descriptors of folders on one file system."""
    fd, made = _new(temporary)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
        os.replace(made, name, src_dir_fd=temporary, dst_dir_fd=target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made, dir_fd=temporary)
        raise


def _new(folder: int) -> tuple[int, str]:
    """A new file in an open folder: its descriptor and its name."""
    # Use the folder by its descriptor: its name may mean another folder by now.
    fd, path = tempfile.mkstemp(prefix=_PREFIX, dir=f"/proc/self/fd/{folder}")
    return fd, Path(path).name


def check_writable(folder: int) -> None:
    """Raise `OSError` if no file can be made in an open folder now."""
    fd, name = _new(folder)
    os.close(fd)
    os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Closes the descriptor at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` as `replacing` does; folders that are not there are made. Raises
    `StoreError`."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """A failure of the body to write `path`, an `OSError` or a `ValueError`, is a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
    except ValueError as error:
        raise StoreError(f"cannot write {shown(str(path))}: {error}") from error


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


def read_whole(path: Path, limit: int, secret: bool = False) -> bytes | None:
    """The content of a regular file of at most `limit` bytes; None if there is no such file.

    secret: the file must be this user's own, readable by nobody else, and no link.

    Raises `BadFile` for anything else (too large, a pipe, a folder) and `StoreError` when the
    system refuses, or a secret is not one.
    """

    def judge(status: os.stat_result) -> None:
        check_own(path, status, READ_OR_WRITE)

    flags = os.O_NOFOLLOW if secret else 0
    try:
        return regular(path, limit, flags, judge if secret else None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if secret and error.errno == errno.ELOOP:
            raise is_link(path) from None
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, BadFile):
            raise
        raise StoreError(f"cannot read {shown(str(path))}: {error}") from error


def check_own(
    path: Path,
    status: os.stat_result,
    denied: int,
    instead: str = "name a folder of your own in TILEWRIGHT_HOME",
) -> None:
    """Check that nobody but this user, and root, can have changed the file or folder `path`, whose
    `lstat` is `status`.

    denied: the permissions that others must not have (`READ_OR_WRITE` for a secret, else `WRITE`).
    instead: what the user can do if another user owns it.

    Raises `StoreError`, which says how to repair it.
    """
    quoted = shlex.quote(str(path))
    if stat.S_ISLNK(status.st_mode):
        raise is_link(path)
    secret = denied == READ_OR_WRITE
    if status.st_uid != os.geteuid() and (secret or status.st_uid != 0):
        raise StoreError(
            f"{path} belongs to {_user(status.st_uid)}, so {_user(os.geteuid())} cannot trust it; "
            f"{instead}, or: sudo chown {_user(os.geteuid())} {quoted}"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & denied:
        raise StoreError(
            f"{path} can be {'read or ' if secret else ''}written by others (mode {mode:04o}), so "
            f"it cannot be trusted; run: chmod {'go-rwx' if secret else 'go-w'} {quoted}"
        )


def is_link(path: Path) -> StoreError:
    """The error for a link where only a file or a folder may be."""
    return StoreError(
        f"{path} is a link, which may lead to anybody's file; run: rm {shlex.quote(str(path))}"
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # in a container
        return str(uid)


def make_own(folder: Path) -> None:
    """Make `folder`, if it is not there, for this user alone, whatever the umask is. Raises
    `OSError`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def clear_stale(temporary: Path) -> None:
    """Remove what killed writers of `replacing`, run by this user, left in `temporary`, and
    nothing else."""
    with contextlib.suppress(OSError):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(temporary, flags)) as folder:
            for name in os.listdir(folder):  # noqa: PTH208 - the folder that was opened
                with contextlib.suppress(OSError):
                    if name.startswith(_PREFIX) and _is_stale(os.lstat(name, dir_fd=folder)):
                        os.unlink(name, dir_fd=folder)


def _is_stale(status: os.stat_result) -> bool:
    own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return own and time.time() - status.st_mtime > _STALE
