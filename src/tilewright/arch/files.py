"""The files that describe architectures and devices: the package's, and those that a user names."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from tilewright import variables
from tilewright.errors import BadFile
from tilewright.jsonfile import load_json

VARIABLE = variables.GPUS
"""Names JSON files, and folders of them, separated as in ``PATH``. Each file describes an
architecture or a device; a device has ``compute_units``."""

_PACKAGE = Path(__file__).parent


@functools.cache
def architectures() -> dict[str, Path]:
    """The file of each architecture, by name, sorted. Raises `BadFile` for a file that a user names
    and that cannot be read, and for a name that two files have."""
    return _together("data", devices=False)


@functools.cache
def devices() -> dict[str, Path]:
    """The file of each device, by slug, sorted. Raises as `architectures`."""
    return _together("devices", devices=True)


def _together(folder: str, devices: bool) -> dict[str, Path]:
    files = {file.stem: file for file in (_PACKAGE / folder).glob("*.json")}
    for file, is_device in _own():
        if is_device != devices:
            continue
        if file.stem in files:
            raise BadFile(
                f"{VARIABLE}: {file}: {files[file.stem]} already describes '{file.stem}'; "
                "give the file another name, or leave it out"
            )
        files[file.stem] = file
    return dict(sorted(files.items()))


@functools.cache
def _own() -> tuple[tuple[Path, bool], ...]:
    """The files that the user names, and whether each describes a device."""
    named = [Path(word) for word in os.environ.get(VARIABLE, "").split(os.pathsep) if word]
    files = [file for path in named for file in (_folder(path) if path.is_dir() else [path])]
    return tuple((file, _is_device(file)) for file in dict.fromkeys(map(Path.absolute, files)))


def _folder(path: Path) -> list[Path]:
    return sorted(path.glob("*.json"))


def _is_device(file: Path) -> bool:
    found = load_json(file)
    if not isinstance(found, dict):
        raise BadFile(f"{VARIABLE}: {file}: not a JSON object, which describes a GPU")
    return "compute_units" in found
