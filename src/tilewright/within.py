"""Writing below a folder that others may write to too, such as a store that a group shares.

Each folder on the way down is opened in the folder above it, and no link is followed: a link could
lead to any file of this user. The way to the first folder, the root, is the caller's word.

Files are made in a folder below the root that only this user can write to: `.writing`. A group
shares a root whose folder has the group's write and set-group-ID permissions (``chmod g+ws``). Each
member then has a folder of their own, `.writing-<user ID>`, and folders that are made are for the
whole group, whatever the umask is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from tilewright import files
from tilewright.files import FOLDER, WRITE, check_own, closing, explained, is_link, replacing_in

_WRITING = ".writing"  # a name that no other program uses
_SHARED = stat.S_ISGID | stat.S_IWGRP


def write(root: Path, name: str, data: bytes) -> None:
    """Write `data` to `root`/`name`, whole or not at all. Folders that are not there are made.
    Raises `StoreError`: also if a folder on the way is a link, or others can write to `.writing`.
    """
    path = root / name
    with explained(path):
        root.mkdir(parents=True, exist_ok=True)
        with (
            closing(os.open(root, FOLDER)) as top,
            _writing(root, top) as temporary,
            _folder(root, top, name, make=True) as target,
            replacing_in(target, path.name, temporary) as file,
        ):
            file.write(data)


def remove(root: Path, name: str) -> None:
    """Remove the file `root`/`name`. Raises `OSError`, and `StoreError` if a folder on the way is a
    link."""
    with closing(os.open(root, FOLDER)) as top, _folder(root, top, name, make=False) as folder:
        os.unlink(Path(name).name, dir_fd=folder)


def check_writable(root: Path) -> None:
    """Raise `StoreError` if nothing could be written below `root` now. Removes what this user's
    killed writers left."""
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
        with closing(os.open(root, FOLDER)) as top, _writing(root, top) as temporary:
            files.clear_stale(root / _name(top))
            files.check_writable(temporary)


def _name(top: int) -> str:
    return f"{_WRITING}-{os.geteuid()}" if _shared(top) else _WRITING


def _shared(top: int) -> bool:
    return os.fstat(top).st_mode & _SHARED == _SHARED


@contextlib.contextmanager
def _writing(root: Path, top: int) -> Iterator[int]:
    """The open folder for files that are being written, which is this user's alone."""
    name = _name(top)
    path = root / name
    with closing(_made(path, name, top, 0o700)) as folder:
        check_own(
            path,
            os.fstat(folder),
            WRITE,
            "name a store of your own in TILEWRIGHT_STORE, or let a group share this one: "
            f"chmod g+ws {shlex.quote(str(root))}",
        )
        yield folder


@contextlib.contextmanager
def _folder(root: Path, top: int, name: str, make: bool) -> Iterator[int]:
    """The open folder of `root`/`name`. make: whether to make folders that are not there."""
    with contextlib.ExitStack() as opened:
        folder, path = top, root
        for part in Path(name).parts[:-1]:
            path /= part
            found = (
                _made(path, part, folder, 0o777, _shared(top))
                if make
                else _open(path, part, folder)
            )
            folder = opened.enter_context(closing(found))
        yield folder


def _made(path: Path, name: str, folder: int, mode: int, shared: bool = False) -> int:
    """As `_open`, but a folder that is not there is made.

    mode: its permissions, of which the umask takes some.
    shared: whether it is for the whole group.
    """
    with contextlib.suppress(FileNotFoundError):
        return _open(path, name, folder)
    with contextlib.suppress(FileExistsError):  # another process was first
        os.mkdir(name, mode, dir_fd=folder)
        if shared:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing(os.open(name, flags, dir_fd=folder)) as new:
                os.fchmod(new, 0o2775)
    return _open(path, name, folder)


def _open(path: Path, name: str, folder: int) -> int:
    """The open folder `name`, whose path is `path`, in an open folder. Raises `OSError`, and
    `StoreError` if it is a link."""
    try:
        return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
            raise is_link(path) from None
        raise
