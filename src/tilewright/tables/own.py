"""The user's own tables: the files that ``TILEWRIGHT_TABLES`` names. Where it is not set, those in
the folder ``tables`` of the user's files (`home`), which ``pretune`` and ``prepare --measure``
write.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tilewright import home, variables
from tilewright.arch.model import Device
from tilewright.errors import BadArgument
from tilewright.files import make_own
from tilewright.tables import named

ENVIRONMENT = variables.TABLES
"""The variable that names table files, separated as in PATH. If it is set and empty, there are no
own tables."""

FOLDER = "tables"


def stated() -> list[str] | None:
    """The files that the variable names; None if it is not set."""
    said = os.environ.get(ENVIRONMENT)
    return None if said is None else [path for path in said.split(os.pathsep) if path]


def kept() -> list[Path]:
    """The tables in the user's folder, in the order of their names."""
    return sorted((home.data() / FOLDER).glob("*.twt"))


def usual(device: Device) -> Path:
    """The table in the user's folder for a device. Makes the folder."""
    make_own(home.data())
    folder = home.data() / FOLDER
    folder.mkdir(exist_ok=True)
    return folder / f"{re.sub(r'[^a-z0-9]+', '_', device.name.lower()).strip('_')}.twt"


def to_write(device: Device) -> Path:
    """The table to write rows of a device into so that later processes of the same environment read
    them: the file that the variable names, or `usual`. Raises `BadArgument` if the variable names
    none, several, or a shipped table."""
    files = stated()
    if files is None:
        return usual(device)
    if len(files) != 1 or files[0].startswith(named.PREFIX):
        raise BadArgument(
            f"{ENVIRONMENT} is '{os.pathsep.join(files)}', which is not one file to write rows "
            "into: name the table to write (--table)"
        )
    return Path(files[0])
