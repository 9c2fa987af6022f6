"""Temporary folders, and the removal of folders whose process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = "lock"


@contextmanager
def scratch(prefix: str) -> Iterator[str]:
    """A new folder in the system's folder for temporary files, removed at the end. If this process
    is killed before, the next `clear` of the same prefix removes it. A fork of this process leaves
    it alone, whatever becomes of the fork's copy of this. Raises `OSError`."""
    folder, owner = tempfile.mkdtemp(prefix=prefix), os.getpid()
    try:
        # The file gets the lock's name only once it is locked. So a free lock means that its
        # process is gone.
        fd, name = tempfile.mkstemp(dir=folder)
        try:
            with suppress(OSError):  # without locks in the file system, `clear` leaves the folder
                fcntl.flock(fd, fcntl.LOCK_EX)
                Path(name).rename(Path(folder, _LOCK))
            yield folder
        finally:
            os.close(fd)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def clear(prefix: str) -> None:
    """Remove the folders with this prefix that processes of this user made with `scratch` and left
    when they were killed. Folders of other users and folders in use stay, and so does anything that
    cannot be removed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                _clear(folder)


def _clear(folder: Path) -> None:
    """Remove one folder if its lock is free. Raises `OSError`."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(fd)
